#include "backend/cpu/blas.h"

#include <cblas.h>

#include <atomic>
#include <chrono>

#include "backend/cpu/cpu_backend.h"

namespace kintsugi {
namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> blas_nanoseconds{0};

template <class F>
void timed(const F& f) {
  if (!counting.load(std::memory_order_relaxed)) return f();
  const auto begin = std::chrono::steady_clock::now();
  f();
  blas_nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

CBLAS_TRANSPOSE flag(bool transpose) { return transpose ? CblasTrans : CblasNoTrans; }
blasint narrow(std::int64_t value) { return static_cast<blasint>(value); }

}  // namespace

void gemm(const GemmArguments<float>& g) {
  timed([&] {
    cblas_sgemm(CblasRowMajor, flag(g.transpose_a), flag(g.transpose_b), narrow(g.m), narrow(g.n),
                narrow(g.k), g.alpha, g.a, narrow(g.lda), g.b, narrow(g.ldb), g.beta, g.c,
                narrow(g.ldc));
  });
}

void gemm(const GemmArguments<double>& g) {
  timed([&] {
    cblas_dgemm(CblasRowMajor, flag(g.transpose_a), flag(g.transpose_b), narrow(g.m), narrow(g.n),
                narrow(g.k), g.alpha, g.a, narrow(g.lda), g.b, narrow(g.ldb), g.beta, g.c,
                narrow(g.ldc));
  });
}

void use_one_blas_thread() { openblas_set_num_threads(1); }
const char* blas_core_name() { return openblas_get_corename(); }

void count_blas_time(bool on) {
  blas_nanoseconds = 0;
  counting = on;
}

double take_blas_seconds() { return static_cast<double>(blas_nanoseconds.exchange(0)) * 1e-9; }

}  // namespace kintsugi
