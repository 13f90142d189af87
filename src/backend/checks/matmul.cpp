#include "backend/checks/checks.h"

namespace kintsugi {

// c is added to, or begins with a bias, a residual or both.
void Checks::start(const Tensor& c, const MatmulOptions& o) const {
  if (o.bias) list(o.bias, c.extent(c.rank() - 1), c.dtype());
  if (o.residual) like(c, o.residual);
  KINTSUGI_CHECK(!o.accumulate || !(o.bias || o.residual),
                 "{}: accumulate cannot be combined with a bias or a residual", operation_);
}

void Checks::activation(const Tensor& c, const MatmulOptions& o) const {
  if (o.swiglu) shaped(o.swiglu, {c.extent(0), c.extent(1) / 2}, c.dtype());
  const bool has_gelu = o.gelu || o.gelu_input;
  KINTSUGI_CHECK((o.scale == 1 && o.residual_scale == 1) || !(o.bias || has_gelu),
                 "{}: scales cannot be combined with a bias or GELU", operation_);
  if (!has_gelu) return;
  KINTSUGI_CHECK(!(o.gelu && o.gelu_input) && !o.accumulate && !o.residual,
                 "{}: GELU cannot be combined with its backward, accumulate or a residual",
                 operation_);
  contiguous(c);
  dense(o.gelu ? o.gelu : o.gelu_input, c.shape(), c.dtype());
}

void Checks::fp8(const Quantized& q, std::int64_t rows, std::int64_t columns) const {
  dense(q.values, {rows, columns}, DType::F8);
  list(q.scales, q.scales.elements() == 1 ? 1 : rows, DType::F32);
}

// A matrix, or several that are contiguous.
void Checks::stack(const Tensor& x) const {
  ranked(x, 2, 3);
  if (x.rank() == 3) contiguous(x);
}

void Checks::matmul(Tensor c, Tensor a, Tensor b, const MatmulOptions& o) const {
  ranked(a, 2, 3);
  const int rows = a.rank() - 2, columns = rows + 1;
  Shape of_b = a.shape(), of_c = a.shape();
  of_c[rows] = a.extent(o.transpose_a ? columns : rows);
  of_c[columns] = b.extent(o.transpose_b ? rows : columns);
  of_b[o.transpose_b ? columns : rows] = a.extent(o.transpose_a ? rows : columns);
  of_b[o.transpose_b ? rows : columns] = of_c[columns];
  shaped(b, of_b, a.dtype());
  shaped(c, of_c, c.dtype() == a.dtype() ? a.dtype() : accumulator_of(a.dtype()));
  KINTSUGI_CHECK(rows == 0 || !(o.bias || o.gelu || o.gelu_input || o.swiglu),
                 "a batch of matmuls {} takes no bias and no activation", to_string(c.shape()));
  start(c, o);
  activation(c, o);
}

void Checks::bias_backward(Tensor dbias, Tensor dy) const {
  matrix(dy);
  list(dbias, dy.extent(1), accumulator_of(dy.dtype()));
}

void Checks::quantize(Quantized rows, Quantized columns, Tensor x,
                      const QuantizeOptions& options) const {
  stack(x);
  KINTSUGI_CHECK(rows || columns, "quantize {} to nothing", to_string(x.shape()));
  const int first = x.rank() - 2;
  const std::int64_t matrices = first == 0 ? 1 : x.extent(0), m = x.extent(first),
                     n = x.extent(first + 1);
  if (rows) fp8(rows, matrices * m, n);
  if (columns) fp8(columns, matrices * n, m);
  KINTSUGI_CHECK(first == 0 || !options.one_scale, "quantize {}: one scale of a stack",
                 to_string(x.shape()));
  found(options.maxima, x);
  if (options.used.offsets) {
    expert_rows(options.used);
    with_rows(x, n, x.dtype(), options.used);
    KINTSUGI_CHECK(rows && !columns && !options.maxima && !options.one_scale,
                   "quantize {}: the rows of experts have scales of their own",
                   to_string(x.shape()));
  }
  if (options.statistics) list(options.statistics, 4, DType::F32);
}

void Checks::find_maxima(Maxima maxima, Tensor x, bool) const {
  stack(x);
  KINTSUGI_CHECK(maxima, "{} of {}: no memory for the maxima", operation_, to_string(x.shape()));
  found(maxima, x);
}

void Checks::matmul_fp8(Tensor c, Quantized a, Quantized b, const MatmulOptions& o) const {
  matrix(c);
  const std::int64_t m = c.extent(0), n = c.extent(1), k = a.columns();
  fp8(a, m, k);
  fp8(b, n, k);
  KINTSUGI_CHECK(m % kFp8Multiple == 0 && n % kFp8Multiple == 0 && k % kFp8Multiple == 0,
                 "matmul_fp8 {} x {} x {}: not multiples of {}", m, n, k, kFp8Multiple);
  KINTSUGI_CHECK((a.scales.elements() == 1) == (b.scales.elements() == 1),
                 "matmul_fp8: one operand has a scale per row, the other one scale");
  KINTSUGI_CHECK(!o.transpose_a && !o.transpose_b && !o.gelu && !o.gelu_input && !o.swiglu &&
                     o.scale == 1 && o.residual_scale == 1,
                 "matmul_fp8: options that it does not take");
  start(c, o);
}

}  // namespace kintsugi
