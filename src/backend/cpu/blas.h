#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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

// The most rows, a power of two up to 64, that one GEMM computes alike: equal rows of a give equal
// rows of c. Measured once, because kernels may sum in another order for some rows (OpenBLAS for
// Haswell and Zen: for the second six of twelve).
std::int64_t rows_computed_alike();
// Makes every BLAS call run on the calling thread only, however the library was built.
void use_one_blas_thread();
// OpenBLAS maps a buffer of kBlasBuffer bytes for each thread that calls it. Our GEMMs, of a few
// hundred rows at most, touch kBlasTouched bytes of it: packed blocks of both operands.
inline constexpr std::size_t kBlasBuffer = std::size_t{128} << 20;
inline constexpr std::size_t kBlasTouched = std::size_t{8} << 20;
// UserError unless `threads` more buffers can be mapped: OpenBLAS itself would retry forever.
void check_blas_buffers(int threads);
const char* blas_core_name();
// OpenBLAS uses kernels for Prescott, without AVX, on processors that it does not know, such as
// those that are newer than itself. The kernels to choose then with OPENBLAS_CORETYPE; empty: none.
// avx512: the processor has what those for SkylakeX need.
std::string_view faster_blas_core();
std::string_view faster_blas_core(std::string_view core, bool avx2, bool avx512);

}  // namespace kintsugi
