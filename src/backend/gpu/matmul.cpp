// Which of the library's matmuls and of our own kernels compute a matmul with its options.
#include "backend/gpu/matmul.h"

#include "backend/gpu/kernels.h"

namespace kintsugi::gpu {
namespace {

constexpr std::int64_t kWord = 8;     // 16-bit elements of 16 bytes
constexpr std::int64_t kMany = 8192;  // rows, columns or terms beside which the rest is little

bool has_whole_words(const Tensor& x) {
  return size_of(x.dtype()) == 2 && row_stride(x) % kWord == 0 && aligned16(x.data());
}

}  // namespace

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
  if (run_whole_words(context, c, a, b, o)) return;

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

bool Matmul::run_whole_words(const Context& context, const Tensor& c, const Tensor& a,
                             const Tensor& b, const MatmulOptions& o) {
  if (o.bias || o.residual || !has_whole_words(a) || !has_whole_words(b)) return false;
  const std::int64_t m = c.extent(0), whole_m = m / kWord * kWord;
  if (o.transpose_a && whole_m < m && m > kMany) {  // rows of c are columns of a
    run(context, c.part(0, 0, whole_m), a.part(1, 0, whole_m), b, o);
    run(context, c.part(0, whole_m, m - whole_m), a.part(1, whole_m, m - whole_m), b, o);
    return true;
  }
  if (!has_whole_words(c)) return false;
  const int n_of_b = o.transpose_b ? 0 : 1, k_of_a = o.transpose_a ? 0 : 1;
  const std::int64_t n = c.extent(1), k = a.extent(k_of_a), whole_n = n / kWord * kWord,
                     whole_k = k / kWord * kWord;
  if (whole_n < n && n > kMany) {
    run(context, c.part(1, 0, whole_n), a, b.part(n_of_b, 0, whole_n), o);
    run(context, c.part(1, whole_n, n - whole_n), a, b.part(n_of_b, whole_n, n - whole_n), o);
    return true;
  }
  if (whole_k == k || k <= kMany) return false;
  // The few terms first: c is rounded twice, and they change it little.
  run(context, c, a.part(k_of_a, whole_k, k - whole_k), b.part(1 - n_of_b, whole_k, k - whole_k),
      o);
  MatmulOptions added = o;
  added.accumulate = true;
  run(context, c, a.part(k_of_a, 0, whole_k), b.part(1 - n_of_b, 0, whole_k), added);
  return true;
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
