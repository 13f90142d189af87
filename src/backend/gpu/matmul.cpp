// Which of the library's matmuls and of our own kernels compute a matmul with its options.
#include "backend/gpu/matmul.h"

#include "backend/gpu/kernels.h"

namespace kintsugi::gpu {

void Matmul::run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                 const MatmulOptions& o) {
  if (c.elements() == 0) return;
  if (matmul_few_rows(context, c, a, b, o)) return;
  if (o.swiglu) {
    MatmulOptions without = o;
    without.swiglu = {};
    run(context, c, a, b, without);
    return swiglu_forward(context, o.swiglu, c);
  }
  if (o.gelu || o.gelu_input) return run_gelu(context, c, a, b, o);

  const MatmulProblem problem(c, a, b, o);
  // Our own kernel adds the bias if it is unaligned or in double, or if the rows are unaligned,
  // where cuBLASLt rounds before it adds the bias.
  const bool aligned_rows = row_stride(c) * static_cast<std::int64_t>(size_of(c.dtype())) % 16 == 0;
  const bool fusable = !o.bias || (c.dtype() != DType::F64 && o.bias.dtype() == c.dtype() &&
                                   aligned_rows && aligned16(o.bias.data()));
  if (fusable && plans_.run(context, problem)) return;
  KINTSUGI_CHECK(o.bias, "{} has no algorithm for matmul {} = {}{} x {}{} in {}", library(),
                 to_string(c.shape()), to_string(a.shape()), o.transpose_a ? "^T" : "",
                 to_string(b.shape()), o.transpose_b ? "^T" : "", to_string(a.dtype()));
  const DType precise = accumulator_of(c.dtype());
  const Tensor unbiased(
      context.workspace.get(static_cast<std::size_t>(c.elements()) * size_of(precise),
                            context.stream),
      precise, c.shape());
  run(context, unbiased, a, b, {.transpose_a = o.transpose_a, .transpose_b = o.transpose_b});
  add_bias(context, c, unbiased, o.bias, o.residual);
}

void Matmul::run_gelu(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                      const MatmulOptions& o) {
  const Tensor& other = o.gelu ? o.gelu : o.gelu_input;
  const auto unfused = [&] {
    run(context, c, a, b,
        {.transpose_a = o.transpose_a, .transpose_b = o.transpose_b, .bias = o.bias});
    if (o.gelu)
      gelu_forward(context, o.gelu, c);
    else
      gelu_backward(context, c, c, o.gelu_input);
  };
  const bool fusable = size_of(c.dtype()) == 2 && c.contiguous() && other.contiguous() &&
                       c.extent(1) % 8 == 0 && aligned16(c.data()) && aligned16(other.data()) &&
                       (!o.bias || (o.bias.dtype() == c.dtype() && aligned16(o.bias.data())));
  if (!fusable) return unfused();
  if (!plans_.run(context, MatmulProblem(c, a, b, o), unfused)) unfused();
}

void Matmul::run_fp8(const Context& context, const Tensor& c, const Quantized& a,
                     const Quantized& b, const MatmulOptions& o) {
  if (c.elements() == 0) return;
  if (c.dtype() == DType::F64) return matmul_fp8_each(context, c, a, b, o);
  // A bias in fp32 cannot be fused: cuBLASLt takes one in bf16 only.
  const bool adds_bias = o.bias && (c.dtype() == DType::F32 || !aligned16(o.bias.data()));
  if (adds_bias) {
    const Tensor unbiased(
        context.workspace.get(static_cast<std::size_t>(c.elements()) * sizeof(float),
                              context.stream),
        DType::F32, c.shape());
    run_fp8(context, unbiased, a, b, {.fast_accumulation = o.fast_accumulation});
    return add_bias(context, c, unbiased, o.bias, o.residual);
  }
  MatmulOptions options = o;
  options.transpose_b = true;
  const MatmulProblem problem(c, a, b, options);
  if (plans_.run(context, problem)) return;
  KINTSUGI_CHECK(c.dtype() == DType::F16,
                 "{} has no algorithm for matmul_fp8 {} = {} x {}^T into {}, {}", library(),
                 to_string(c.shape()), to_string(a.values.shape()), to_string(b.values.shape()),
                 to_string(c.dtype()), problem.has_row_scales() ? "scales of rows" : "one scale");
  matmul_fp8_each(context, c, a, b, o);
}

void matmul(const Context& context, Tensor c, Tensor a, Tensor b, const MatmulOptions& options) {
  context.matmul.run(context, c, a, b, options);
}

void matmul_fp8(const Context& context, Tensor c, Quantized a, Quantized b,
                const MatmulOptions& options) {
  context.matmul.run_fp8(context, c, a, b, options);
}

}  // namespace kintsugi::gpu
