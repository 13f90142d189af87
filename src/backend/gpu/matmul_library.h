#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

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

// The matmuls of the vendor's library: cuBLASLt. The first matmul of a new shape chooses an
// algorithm; later ones only launch it. Algorithms do not depend on the scales.
class MatmulLibrary {
 public:
  virtual ~MatmulLibrary() = default;
  // Returns false, without any effect, for a matmul that the library cannot compute. `unfused`
  // computes the same result by separate calls: if it is given, false also means that it is faster.
  virtual bool run(const Context& context, const MatmulProblem& problem,
                   const std::function<void()>& unfused = {}) = 0;
  virtual std::string name() const = 0;  // "cuBLASLt 120402"
  virtual std::size_t own_bytes() const = 0;
};
std::unique_ptr<MatmulLibrary> make_matmul_library(const MatmulSettings& settings);

}  // namespace kintsugi::gpu
