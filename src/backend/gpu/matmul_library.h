#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/common.h"

namespace kintsugi::gpu {

struct MatmulSettings {
  bool tf32 = false;
  bool tune =
      true;  // time the candidates of each new shape; false: use the library's first proposal
  std::string cache_file;  // stores the chosen algorithms; empty: not stored
  std::string gpu;         // the GPU's name, part of the cache's keys
};

// Operands are (rows, columns), or (count, rows, columns) for a batch of `count` matmuls.
inline int rows_of(const Tensor& x) { return x.rank() - 2; }
inline std::int64_t row_stride(const Tensor& x) { return x.stride(rows_of(x)); }
inline std::int64_t count_of(const Tensor& x) { return x.rank() == 3 ? x.extent(0) : 1; }
inline std::int64_t batch_stride(const Tensor& x) { return x.rank() == 3 ? x.stride(0) : 0; }

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

// An algorithm, in the library's own words.
using MatmulAlgorithm = std::array<std::uint64_t, 8>;

struct MatmulScratch {
  void* address;
  std::size_t bytes;
};

// One form of matmul, as a library describes it: what does not depend on the operands' addresses.
class LibraryMatmul {
 public:
  virtual ~LibraryMatmul() = default;
  // The library's favourite first; empty: it has none that needs at most so many bytes of scratch.
  virtual std::vector<MatmulAlgorithm> propose(const MatmulProblem& problem,
                                               std::size_t scratch_bytes) const = 0;
  virtual bool is_usable(const MatmulAlgorithm& algorithm, std::size_t scratch_bytes) const = 0;
  // Addresses that are part of the description.
  virtual void set_pointers(const MatmulProblem& problem) = 0;
  // Writes to `c`, which has the layout of problem.c. Empty, or why the library refuses.
  virtual std::string launch(const MatmulProblem& problem, const MatmulAlgorithm& algorithm,
                             void* c, MatmulScratch scratch, Stream stream) const = 0;
};

// A vendor's library of matmuls: cuBLASLt, hipBLASLt or rocBLAS. All of them are column-major: our
// row-major c = a b is their c^T = b^T a^T, so the operands are swapped and nothing is transposed
// in memory.
class MatmulLibrary {
 public:
  virtual ~MatmulLibrary() = default;
  virtual std::string name() const = 0;  // "cuBLASLt 120402"
  // nullptr if the library has no such matmuls.
  virtual std::unique_ptr<LibraryMatmul> describe(const MatmulProblem& problem) = 0;
};
// Those that were found, the one to be asked first in front.
std::vector<std::unique_ptr<MatmulLibrary>> matmul_libraries(const MatmulSettings& settings);

// The scales of a problem in the type that a library computes in.
struct MatmulScales {
  explicit MatmulScales(const MatmulProblem& p)
      : wide_{p.scale, p.added ? p.added_scale : 0.0},
        narrow_{static_cast<float>(wide_[0]), static_cast<float>(wide_[1])},
        is_wide_(p.c.dtype() == DType::F64) {}
  const void* product() const { return is_wide_ ? static_cast<const void*>(wide_) : narrow_; }
  const void* added() const { return is_wide_ ? static_cast<const void*>(wide_ + 1) : narrow_ + 1; }

 private:
  double wide_[2];
  float narrow_[2];
  bool is_wide_;
};
// The operand that is added with its scale, or, without one, any that may be named.
inline const void* added_or(const MatmulProblem& p, void* c) {
  return p.added && !p.in_place() ? p.added.data() : c;
}

std::int64_t alignment_of(const Tensor& x);  // of every matrix of x; at most 16 bytes

}  // namespace kintsugi::gpu
