#pragma once

#include <optional>

#include "model/layers/layer_run.h"

namespace kintsugi {

// What fp8 matmuls read of one LinearSpec's parameters: W or, of experts, a stack of matrices,
// quantized in both orientations in the store's memory; and how operands are quantized.
class Fp8Weight {
 public:
  explicit Fp8Weight(const std::optional<Fp8Spec>& spec) : spec_(spec) {}

  // After the matrices, which form one of `shape` (…, outputs, inputs), or (inputs, outputs) if
  // `in_out`. They are on if their sizes are multiples of 16.
  void declare(Declaration& d, int weight, Shape shape, bool in_out = false);
  bool on() const { return on_; }
  const Fp8Spec& spec() const { return *spec_; }
  // Generation and scoring of sequences of any length fall back to the run's precision.
  bool is_used(const LayerRun& run) const {
    return on_ && run.batch.cached == nullptr && run.size.length % kFp8Multiple == 0;
  }

  enum class Operand : std::uint8_t { Input, Gradient, Weight };  // rows of the statistics
  QuantizeOptions options(const Maxima& maxima) const;
  // The same, with statistics if they are wanted.
  QuantizeOptions counted(const LayerRun& run, Operand operand, const Maxima& maxima) const;

  // In the run's precision, for matmuls that are not in fp8: those of an evaluation.
  Tensor rounded(const LayerRun& run) const;
  Quantized for_forward(const LayerRun& run) const;
  Quantized for_backward(const LayerRun& run) const;

 private:
  void quantize(const LayerRun& run, Quantized rows, Quantized columns,
                QuantizeOptions options) const;

  std::optional<Fp8Spec> spec_;
  bool on_ = false, in_out_ = false;
  int weight_ = -1;
  Shape shape_;
};

// Memory for a Quantized of `most` rows per token.
TensorSpec quantized_rows(std::string_view label, std::int64_t width, std::int64_t most = 1);

// The matmuls of a Linear in fp8: the forward, the gradient of x, and the gradient of W. It owns
// the quantized copies of x and dy; those of W are the store's.
//
//   forward   y  (tokens, out) = x  (tokens, in)  * W   (out, in)^T
//   backward  dx (tokens, in)  = dy (tokens, out) * W^T (in, out)^T
//             dW (out, in)     = dy^T (out, tokens) * x^T (in, tokens)^T
//
// The rows of each operand have their own scales, so that x, dy and W are needed in both
// orientations: with the scales of their rows, and transposed with those of their columns.
class Fp8Matmuls {
 public:
  explicit Fp8Matmuls(const std::optional<Fp8Spec>& spec) : weight_(spec) {}

  // After the matrices, which form one of `shape`, stored [in, out] if `in_out`. `reads_x`: the
  // gradients of the Linear need x itself, too.
  void declare(Declaration& d, int weight, Shape shape, bool in_out, bool reads_x);
  const Fp8Weight& weight() const { return weight_; }
  bool has_weight_gradient() const { return weight_gradient_; }
  // The forward keeps what backward_weight() needs of x: its caller may overwrite x.
  bool keeps_input() const { return keeps_input_; }

  // Who writes x, or dy, finds its maxima: call these after declare(), and give the tensors to the
  // operation that writes. Empty if they are not needed. The inputs whose maxima have the same
  // label are written, and recomputed, one at a time.
  void take_input_maxima(Declaration& d, std::string_view label);
  void take_gradient_maxima(Declaration& d);
  Maxima input_maxima(const LayerRun& run) const { return maxima(run, input_maxima_, inputs_); }
  Maxima gradient_maxima(const LayerRun& run) const {
    return maxima(run, gradient_maxima_, outputs_);
  }

  // `options` may have a bias and a residual.
  void forward(const LayerRun& run, Tensor y, Tensor x, MatmulOptions options) const;
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy, MatmulOptions options) const;
  // After backward_input().
  void backward_weight(const LayerRun& run, Tensor gradient, Tensor x) const;

 private:
  using Operand = Fp8Weight::Operand;
  const Fp8Spec& spec() const { return weight_.spec(); }
  Maxima maxima(const LayerRun& run, Workspace memory, std::int64_t width) const;
  Quantized view(const Tensor& memory, std::int64_t rows, std::int64_t columns) const;
  Quantized transposed_input(const LayerRun& run) const;
  Quantized transposed_gradient(const LayerRun& run) const {
    return view(run[dy_columns_], outputs_, run.size.tokens());
  }
  bool keeps(const LayerRun& run) const {
    return keeps_input_ && weight_gradient_ && run.recompute == Recompute::None &&
           !run.batch.scored_only;
  }

  Fp8Weight weight_;
  bool weight_gradient_ = false, keeps_input_ = false, in_out_ = false;
  std::int64_t inputs_ = 0, outputs_ = 0;
  Workspace x_rows_, dy_rows_;                // (tokens, inputs), (tokens, outputs)
  Workspace dy_columns_;                      // (outputs, tokens), read by backward_weight()
  Saved kept_x_columns_;                      // (inputs, tokens), if keeps_input_
  Workspace x_columns_;                       // or else
  Workspace input_maxima_, gradient_maxima_;  // (tokens + width), int32; index -1: not taken
};

}  // namespace kintsugi
