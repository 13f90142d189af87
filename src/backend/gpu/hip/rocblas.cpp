// Matmuls by rocBLAS: every form without a bias or GELU.
#include <fmt/format.h>

#include <limits>

#include "backend/gpu/hip/api.h"
#include "backend/gpu/hip/libraries.h"
#include "core/error.h"

namespace kintsugi::gpu {
namespace {

constexpr int kNone = 111, kTranspose = 112;  // rocblas_operation
constexpr int kHalf = 150, kFloat = 151, kDouble = 152, kBf16 = 168,
              kNoType = 0;  // rocblas_datatype

int type_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return kDouble;
    case DType::F32:
      return kFloat;
    case DType::BF16:
      return kBf16;
    case DType::F16:
      return kHalf;
    default:
      return kNoType;
  }
}

using Stride = std::int64_t;

struct Functions {
  explicit Functions(const SharedLibrary& library) {
    const auto find = [&](auto*& function, const char* name) { require(library, function, name); };
    find(create, "rocblas_create_handle");
    find(destroy, "rocblas_destroy_handle");
    find(set_stream, "rocblas_set_stream");
    find(set_atomics_mode, "rocblas_set_atomics_mode");
    find(version, "rocblas_get_version_string");
    find(status_text, "rocblas_status_to_string");
    find(gemm, "rocblas_gemm_strided_batched_ex");
  }
  int (*create)(void**);
  int (*destroy)(void*);
  int (*set_stream)(void*, void*);
  int (*set_atomics_mode)(void*, int);
  int (*version)(char*, std::size_t);
  const char* (*status_text)(int);
  // The operands a, b, c and d: address, type, elements from one column and matrix to the next.
  int (*gemm)(void* handle, int transpose_a, int transpose_b, int m, int n, int k,
              const void* alpha, const void* a, int a_type, int lda, Stride a_stride, const void* b,
              int b_type, int ldb, Stride b_stride, const void* beta, const void* c, int c_type,
              int ldc, Stride c_stride, void* d, int d_type, int ldd, Stride d_stride, int count,
              int compute_type, int algorithm, std::int32_t solution, std::uint32_t flags);
};

struct Handle {
  Handle()
      : library("/", hip::rocm_library({"librocblas.so", "librocblas.so.5", "librocblas.so.4",
                                        "librocblas.so.0"})),
        functions(library) {
    check(functions.create(&address), "rocblas_create_handle");
    constexpr int kNotAllowed = 0;  // sums in a fixed order
    check(functions.set_atomics_mode(address, kNotAllowed), "rocblas_set_atomics_mode");
  }
  ~Handle() { functions.destroy(address); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void check(int status, const char* call) const {
    if (status != 0) failure("rocBLAS: {} in {}", functions.status_text(status), call);
  }

  SharedLibrary library;
  Functions functions;
  void* address = nullptr;
};

class RocblasMatmul final : public LibraryMatmul {
 public:
  explicit RocblasMatmul(const Handle& handle) : handle_(handle) {}

  std::vector<MatmulAlgorithm> propose(const MatmulProblem&, std::size_t) const override {
    return {MatmulAlgorithm{}};  // the library chooses by itself
  }
  bool is_usable(const MatmulAlgorithm&, std::size_t) const override { return true; }
  void set_pointers(const MatmulProblem&) override {}
  std::string launch(const MatmulProblem& p, const MatmulAlgorithm&, void* c, MatmulScratch,
                     Stream stream) const override {
    const Functions& f = handle_.functions;
    if (const int status = f.set_stream(handle_.address, stream); status != 0)
      return f.status_text(status);
    const MatmulScales scales(p);
    const Tensor& added = p.added ? p.added : p.c;
    const int status = f.gemm(
        handle_.address, p.transpose_b ? kTranspose : kNone, p.transpose_a ? kTranspose : kNone,
        static_cast<int>(p.n), static_cast<int>(p.m), static_cast<int>(p.k), scales.product(),
        p.b.data(), type_of(p.b.dtype()), width(p.b), batch_stride(p.b), p.a.data(),
        type_of(p.a.dtype()), width(p.a), batch_stride(p.a), scales.added(), added_or(p, c),
        type_of(added.dtype()), width(added), batch_stride(added), c, type_of(p.c.dtype()),
        width(p.c), batch_stride(p.c), static_cast<int>(count_of(p.c)),
        p.c.dtype() == DType::F64 ? kDouble : kFloat, 0, 0, 0);
    return status == 0 ? "" : f.status_text(status);
  }

 private:
  static int width(const Tensor& x) { return static_cast<int>(row_stride(x)); }
  const Handle& handle_;
};

class Rocblas final : public MatmulLibrary {
 public:
  std::string name() const override {
    char version[64] = {};
    handle_.functions.version(version, sizeof(version) - 1);
    const std::string text = version;  // "4.2.0.", then the commit
    const std::size_t second = text.find('.', text.find('.') + 1);
    return fmt::format("rocBLAS {}", text.substr(0, text.find('.', second + 1)));
  }
  std::unique_ptr<LibraryMatmul> describe(const MatmulProblem& p) override {
    constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
    const bool small = p.m <= kLargest && p.n <= kLargest && p.k <= kLargest &&
                       row_stride(p.a) <= kLargest && row_stride(p.b) <= kLargest &&
                       row_stride(p.c) <= kLargest;
    if (p.bias || p.epilogue != MatmulProblem::Epilogue::None || p.is_fp8() || !small)
      return nullptr;
    return std::make_unique<RocblasMatmul>(handle_);
  }

 private:
  Handle handle_;
};

}  // namespace

std::unique_ptr<MatmulLibrary> open_rocblas(std::string& why) {
  try {
    return std::make_unique<Rocblas>();
  } catch (const Failure& error) {
    why = error.what();
    return nullptr;
  }
}

}  // namespace kintsugi::gpu
