#pragma once

#include <cstdint>

namespace kintsugi {

// Row-major c (m, n) = alpha * op(a) op(b) + beta * c on the calling thread.
template <class R>
struct GemmArguments {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  R alpha = 1;
  const R* a = nullptr;
  std::int64_t lda = 0;
  const R* b = nullptr;
  std::int64_t ldb = 0;
  R beta = 0;
  R* c = nullptr;
  std::int64_t ldc = 0;
};
void gemm(const GemmArguments<float>& g);
void gemm(const GemmArguments<double>& g);

// Keeps BLAS on the calling thread, whichever threading the installed library was built with.
void use_one_blas_thread();
const char* blas_core_name();

}  // namespace kintsugi
