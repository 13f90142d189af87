// The vendor's libraries of an emulated GPU: matmuls by the CPU backend's BLAS.
#include "backend/gpu/libraries.h"

#include <fmt/format.h>

#include <vector>

#include "backend/cpu/blas.h"
#include "backend/gpu/activity.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/matmul_library.h"
#include "emulator/runtime.h"

namespace kintsugi {

std::string gpu_library_versions() { return "emulated"; }
void prepare_gpu_profile() {}

namespace gpu {

std::string why_no_fp8(const Device&, const Traits&, bool) { return ""; }

std::unique_ptr<ActivityRecorder> make_activity_recorder() {
  failure("an emulated GPU records no activities");
}

// ---- matmuls
namespace {

// The rows of op(x) as R, without gaps. `scales`: of each row of x, or one for all.
template <class R>
std::vector<R> dense(const Tensor& x, const Tensor& scales) {
  const std::int64_t rows = x.extent(0), columns = x.extent(1);
  std::vector<R> values(static_cast<std::size_t>(rows * columns));
  const auto copy_rows = [&]<class T>() {
    for (std::int64_t i = 0; i < rows; ++i) {
      const R scale =
          !scales ? R(1) : static_cast<R>(scales.as<float>()[scales.elements() == 1 ? 0 : i]);
      for (std::int64_t j = 0; j < columns; ++j)
        values[static_cast<std::size_t>(i * columns + j)] =
            scale * static_cast<R>(static_cast<Accumulator<T>>(x.as<T>()[i * x.stride(0) + j]));
    }
  };
  if (x.dtype() == DType::F8)
    copy_rows.template operator()<f8>();
  else
    visit_float(x.dtype(), copy_rows);
  return values;
}

Tensor matrix(const Tensor& x, std::int64_t index) {
  return x && x.rank() == 3 ? x.select(0, index) : x;
}

template <class R>
void multiply(const MatmulProblem& p, std::int64_t index) {
  const Tensor c = matrix(p.c, index), a = matrix(p.a, index), b = matrix(p.b, index),
               added = matrix(p.added, index);
  const std::vector<R> left = dense<R>(a, p.scales_a), right = dense<R>(b, p.scales_b);
  std::vector<R> product(static_cast<std::size_t>(p.m * p.n));
  gemm({.transpose_a = p.transpose_a,
        .transpose_b = p.transpose_b,
        .m = p.m,
        .n = p.n,
        .k = p.k,
        .alpha = static_cast<R>(p.scale),
        .a = left.data(),
        .lda = a.extent(1),
        .b = right.data(),
        .ldb = b.extent(1),
        .c = product.data(),
        .ldc = p.n});
  visit_float(p.c.dtype(), [&]<class T>() {
    const auto up = [](T x) { return static_cast<R>(static_cast<Accumulator<T>>(x)); };
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        R value = product[static_cast<std::size_t>(i * p.n + j)];
        if (p.bias) value += up(p.bias.as<T>()[j]);
        if (added)
          value += static_cast<R>(p.added_scale) * up(added.as<T>()[i * added.stride(0) + j]);
        c.as<T>()[i * c.stride(0) + j] = static_cast<T>(static_cast<Accumulator<T>>(value));
      }
  });
}

class EmulatedMatmul final : public LibraryMatmul {
 public:
  std::vector<MatmulAlgorithm> propose(const MatmulProblem&, std::size_t) const override {
    return {MatmulAlgorithm{}};
  }
  bool is_usable(const MatmulAlgorithm&, std::size_t) const override { return true; }
  void set_pointers(const MatmulProblem&) override {}
  std::string launch(const MatmulProblem& problem, const MatmulAlgorithm&, void*, MatmulScratch,
                     Stream stream) const override {
    queue_on_host(stream, [p = problem] {
      for (std::int64_t i = 0; i < count_of(p.c); ++i)
        p.c.dtype() == DType::F64 ? multiply<double>(p, i) : multiply<float>(p, i);
    });
    return "";
  }
};

class EmulatedLibrary final : public MatmulLibrary {
 public:
  std::string name() const override { return "BLAS"; }
  std::unique_ptr<LibraryMatmul> describe(const MatmulProblem& p) override {
    if (p.epilogue != MatmulProblem::Epilogue::None) return nullptr;
    return std::make_unique<EmulatedMatmul>();
  }
};

}  // namespace

std::vector<std::unique_ptr<MatmulLibrary>> matmul_libraries(const MatmulSettings&) {
  std::vector<std::unique_ptr<MatmulLibrary>> libraries;
  libraries.push_back(std::make_unique<EmulatedLibrary>());
  return libraries;
}

}  // namespace gpu
}  // namespace kintsugi
