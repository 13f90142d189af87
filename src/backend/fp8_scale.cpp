#include "backend/fp8_scale.h"

namespace kintsugi {
namespace {

void check(const Quantized& q, std::int64_t rows, std::int64_t columns) {
  KINTSUGI_CHECK(q.values.rank() == 2 && q.rows() == rows && q.columns() == columns &&
                     q.values.dtype() == DType::F8 && q.values.contiguous() &&
                     q.scales.dtype() == DType::F32 &&
                     (q.scales.elements() == rows || q.scales.elements() == 1),
                 "fp8 matrix {} with {} scales instead of {} x {}", to_string(q.values.shape()),
                 q.scales.elements(), rows, columns);
}

}  // namespace

void check_maxima(const Maxima& maxima, const Tensor& x) {
  KINTSUGI_CHECK(x.rank() == 2 && maxima.rows.elements() == x.extent(0) &&
                     maxima.columns.elements() == x.extent(1) &&
                     maxima.rows.dtype() == DType::I32 && maxima.columns.dtype() == DType::I32,
                 "{} and {} maxima of {}", maxima.rows.elements(), maxima.columns.elements(),
                 to_string(x.shape()));
}

void check_quantize(const Quantized& rows, const Quantized& columns, const Tensor& x,
                    const QuantizeOptions& options) {
  KINTSUGI_CHECK(x.rank() == 2 && (rows || columns), "quantize {}", to_string(x.shape()));
  if (options.maxima) check_maxima(options.maxima, x);
  if (rows) check(rows, x.extent(0), x.extent(1));
  if (columns) check(columns, x.extent(1), x.extent(0));
}

void check_matmul_fp8(const Tensor& c, const Quantized& a, const Quantized& b,
                      const MatmulOptions& o) {
  KINTSUGI_CHECK(c.rank() == 2, "matmul_fp8 into {}", to_string(c.shape()));
  check(a, c.extent(0), a.columns());
  check(b, c.extent(1), a.columns());
  KINTSUGI_CHECK(c.extent(0) % kFp8Multiple == 0 && c.extent(1) % kFp8Multiple == 0 &&
                     a.columns() % kFp8Multiple == 0,
                 "matmul_fp8 {} x {} x {}: not multiples of {}", c.extent(0), c.extent(1),
                 a.columns(), kFp8Multiple);
  KINTSUGI_CHECK((a.scales.elements() == 1) == (b.scales.elements() == 1),
                 "matmul_fp8: one operand has a scale per row, the other one scale");
  KINTSUGI_CHECK(
      !o.transpose_a && !o.transpose_b && !o.gelu && !o.gelu_input && !o.swiglu && o.scale == 1 &&
          o.residual_scale == 1 && !(o.accumulate && (o.bias || o.residual)) &&
          (!o.residual || (o.residual.shape() == c.shape() && o.residual.dtype() == c.dtype())) &&
          (!o.bias || (o.bias.elements() == c.extent(1) && o.bias.dtype() == c.dtype())),
      "matmul_fp8: options that it does not take");
}

}  // namespace kintsugi
