#include "backend/cpu/blas.h"

#include <cblas.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"
#include "core/host/free_memory.h"
#include "core/units.h"

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

namespace {

template <class R>
bool computes_alike(std::int64_t rows, std::int64_t columns, std::int64_t depth, bool transpose_b) {
  std::vector<R> a(static_cast<std::size_t>(rows * depth)),
      b(static_cast<std::size_t>(depth * columns)), c(static_cast<std::size_t>(rows * columns));
  const auto number = [](std::int64_t i) { return static_cast<R>(std::sin(1.0 + 0.7 * i * i)); };
  for (std::int64_t i = 0; i < rows * depth; ++i)
    a[static_cast<std::size_t>(i)] = number(i % depth);
  for (std::int64_t i = 0; i < depth * columns; ++i)
    b[static_cast<std::size_t>(i)] = number(depth + i);
  gemm(GemmArguments<R>{.transpose_b = transpose_b,
                        .m = rows,
                        .n = columns,
                        .k = depth,
                        .a = a.data(),
                        .lda = depth,
                        .b = b.data(),
                        .ldb = transpose_b ? depth : columns,
                        .c = c.data(),
                        .ldc = columns});
  for (std::int64_t row = 1; row < rows; ++row)
    if (!std::equal(c.begin(), c.begin() + columns, c.begin() + row * columns)) return false;
  return true;
}

}  // namespace

std::int64_t rows_computed_alike() {
  static const std::int64_t most = [] {
    for (std::int64_t rows = 64; rows > 1; rows /= 2) {
      bool alike = true;
      for (const std::int64_t columns : {67, 128})
        for (const std::int64_t depth : {48, 333})
          for (const bool transpose_b : {false, true})
            alike = alike && computes_alike<float>(rows, columns, depth, transpose_b) &&
                    computes_alike<double>(rows, columns, depth, transpose_b);
      if (alike) return rows;
    }
    return std::int64_t{1};
  }();
  return most;
}

void use_one_blas_thread() { openblas_set_num_threads(1); }

// Maps the buffers one by one, as OpenBLAS does: the system may refuse one large block but grant
// many small ones.
void check_blas_buffers(int threads) {
  std::vector<void*> buffers;
  for (int i = 0; i < threads; ++i) {
    void* buffer =
        ::mmap(nullptr, kBlasBuffer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) break;
    buffers.push_back(buffer);
  }
  for (void* buffer : buffers) ::munmap(buffer, kBlasBuffer);
  if (static_cast<int>(buffers.size()) == threads) return;
  const std::size_t left = free_address_space();
  const auto in_words = [](std::size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  user_error(
      "OpenBLAS needs {} of address space for each of {} thread{} and {}: raise the limit (ulimit "
      "-v), use fewer threads or set OPENBLAS_NUM_THREADS=1, which keeps it from starting its own",
      in_words(kBlasBuffer), threads, threads == 1 ? "" : "s",
      left == kUnlimited ? "the system refuses them"
                         : fmt::format("{} is left within this process's limit", in_words(left)));
}

std::string cpu_library_versions() {
  const std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 DYNAMIC_ARCH …"
  return config.substr(0, config.find(' ', config.find(' ') + 1));
}

const char* blas_core_name() { return openblas_get_corename(); }

std::string_view faster_blas_core(std::string_view core, bool avx2, bool avx512) {
  if (core != "Prescott" || !avx2) return "";
  return avx512 ? "SkylakeX" : "Haswell";
}

std::string_view faster_blas_core() {
#if defined(__x86_64__)
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr) return "";  // it was chosen
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return faster_blas_core(blas_core_name(), __builtin_cpu_supports("avx2"), avx512);
#else
  return "";
#endif
}

void count_blas_time(bool on) {
  blas_nanoseconds = 0;
  counting = on;
}

double take_blas_seconds() { return static_cast<double>(blas_nanoseconds.exchange(0)) * 1e-9; }

}  // namespace kintsugi
