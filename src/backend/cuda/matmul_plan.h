#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

// What cuBLASLt needs to know of a matmul. The library is column-major: our row-major c = a b is
// its c^T = b^T a^T, so the operands are swapped and nothing is transposed in memory. For c = a b^T
// this is the layout that its fp8 kernels need.

#define KINTSUGI_CUBLAS(expression)                                                    \
  do {                                                                                 \
    const cublasStatus_t kintsugi_status = (expression);                               \
    if (kintsugi_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                         \
      failure("cuBLASLt: {} in {} at {}:{}", cublasLtGetStatusString(kintsugi_status), \
              #expression, __FILE__, __LINE__);                                        \
  } while (false)

namespace kintsugi::cuda {
namespace lt {

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const {
    destroy(object);
  }
};
template <class T, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<destroy>>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace lt

// Operands are (rows, columns), or (count, rows, columns) for a batch of `count` matmuls.
inline int rows_of(const Tensor& x) { return x.rank() - 2; }
inline std::int64_t row_stride(const Tensor& x) { return x.stride(rows_of(x)); }
inline std::int64_t count_of(const Tensor& x) { return x.rank() == 3 ? x.extent(0) : 1; }
inline std::int64_t batch_stride(const Tensor& x) { return x.rank() == 3 ? x.stride(0) : 0; }
std::int64_t alignment_of(const Tensor& x);  // of every matrix of x; at most 16 bytes

// One matmul with its operands. `added` is the tensor that is added to op(a) op(b): c itself, the
// residual, or none. `gelu_input` is the input of a fused GELU, which the GELU writes and its
// gradient reads. The operands of an fp8 matmul have scales, one each or one for each of their
// rows.
struct MatmulProblem {
  enum class Epilogue : std::uint8_t { None, Gelu, GeluGradient };

  MatmulProblem(const Tensor& c, const Tensor& a, const Tensor& b, const MatmulOptions& o)
      : c(o.gelu ? o.gelu : c),
        a(a),
        b(b),
        bias(o.bias),
        transpose_a(o.transpose_a),
        transpose_b(o.transpose_b),
        m(c.extent(rows_of(c))),
        n(c.extent(rows_of(c) + 1)),
        k(a.extent(rows_of(a) + (o.transpose_a ? 0 : 1))),
        added(o.accumulate ? c : o.residual),
        scale(o.scale),
        added_scale(o.accumulate ? 1.0 : o.residual_scale),
        gelu_input(o.gelu ? c : o.gelu_input),
        epilogue(o.gelu         ? Epilogue::Gelu
                 : o.gelu_input ? Epilogue::GeluGradient
                                : Epilogue::None) {}
  MatmulProblem(const Tensor& c, const Quantized& a, const Quantized& b, const MatmulOptions& o)
      : MatmulProblem(c, a.values, b.values, o) {
    scales_a = a.scales;
    scales_b = b.scales;
    fast_accumulation = o.fast_accumulation;
  }

  bool is_fp8() const { return a.dtype() == DType::F8; }
  bool has_row_scales() const { return is_fp8() && scales_a.elements() > 1; }
  bool in_place() const { return added && added.data() == c.data(); }

  Tensor c, a, b, bias;
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  Tensor added;
  double scale, added_scale;  // of op(a) op(b) and of `added`
  Tensor gelu_input;
  Epilogue epilogue;
  Tensor scales_a = {}, scales_b = {};
  bool fast_accumulation = false;
};

// Everything an algorithm may depend on.
using MatmulKey = std::array<std::int64_t, 24>;
MatmulKey key_of(const MatmulProblem& p);
std::string cache_name(const MatmulProblem& p);  // the key in the file of chosen algorithms

struct MatmulPlan {
  lt::Operation operation;
  lt::Layout first, second, added, c;  // the library's a (our b), b (our a), c and d
  bool supported = false;
  cublasLtMatmulAlgo_t algorithm = {};
};
MatmulPlan describe(const MatmulProblem& p, bool tf32);

// Sets the pointers that are part of the operation descriptor and change from call to call.
void set_pointers(const MatmulPlan& plan, const MatmulProblem& p);

// Why cuBLASLt cannot scale the rows of fp8 operands, on a GPU that could; empty: it can.
std::string why_no_row_scales();

std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm);
std::optional<cublasLtMatmulAlgo_t> parse_algorithm(const std::string& text);

}  // namespace kintsugi::cuda
