#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "backend/gpu/matmul_library.h"

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

namespace kintsugi::gpu {
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

std::int64_t alignment_of(const Tensor& x);  // of every matrix of x; at most 16 bytes

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

}  // namespace kintsugi::gpu
