#pragma once

#include <vector>

#include "model/layers/fp8_matmuls.h"

namespace kintsugi {

// What Linear is, for experts: y = x W^T for the rows of each expert, with its own W. Of an expert,
// several matrices with the same input (gate, up) act as one, and some of them may have low-rank
// adapters: y += scale * (x A^T) B^T, with A and B of the same expert. y and the gradient of x may
// be computed in fp8, with a scale for each row of x, dy and W, and for each column of W. The
// gradient of W is in the run's precision: its operands would have to be transposed, x and dy of
// tokens once for each choice, which takes as long as fp8 saves.
class ExpertLinear {
 public:
  // Which side has a row per token instead of one per choice: the input, or the gradient of the
  // output.
  enum class Tokens : std::uint8_t { Input, Output };
  ExpertLinear(const LinearSpec& spec, std::int64_t experts, Tokens tokens)
      : spec_(spec), experts_(experts), tokens_(tokens), fp8_(spec.fp8) {}

  // A token uses the part `used` of the experts; per own token there are at most `visitors` tokens
  // and `most` rows on this rank.
  void declare(Declaration& d, double used, std::int64_t visitors, std::int64_t most);

  // Computes what adapters need of x. Before forward(), and before backward_weight() if it was
  // dropped.
  void read(const LayerRun& run, Tensor x, const ExpertRows& rows) const;
  void forward(const LayerRun& run, Tensor y, Tensor x, const ExpertRows& rows) const;
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy, const ExpertRows& rows) const;
  // Whether backward_weight() computes anything. It runs after backward_input(), perhaps much
  // later.
  bool is_trained(const LayerRun& run) const;
  void backward_weight(const LayerRun& run, Tensor dy, Tensor x, const ExpertRows& rows) const;

 private:
  void declare_adapters(Declaration& d, double used, std::int64_t most);
  bool adapts() const { return !adapted_.empty(); }
  std::int64_t outputs() const { return spec_.outputs.front(); }  // of one matrix
  Tensor weight(const LayerRun& run) const {
    return fp8_.on() ? fp8_.rounded(run) : run.store().weight(weight_, shape_);
  }
  Quantized quantized(const LayerRun& run, Fp8Weight::Operand operand, Tensor x, bool of_tokens,
                      const ExpertRows& rows) const;
  Tensor a(const LayerRun& run) const { return run.store().weight(a_, a_shape_); }
  // Calls f(i, columns of y, columns of low) for the i-th of the matrices with adapters.
  void for_each_adapter(Tensor y, Tensor low, const auto& f) const;

  LinearSpec spec_;  // the matrices of all experts, one expert after the other
  std::int64_t experts_;
  Tokens tokens_;
  Fp8Weight fp8_;
  Workspace x_rows_, dy_rows_;  // in fp8
  int weight_ = -1, a_ = -1, b_ = -1;
  Shape shape_;                        // (own experts, outputs, inputs)
  std::vector<std::int64_t> adapted_;  // of an expert's matrices, those with adapters
  Shape a_shape_, b_shape_;  // (own experts, adapters * r, inputs), (…, adapters, outputs, r)
  Saved low_;                // (rows, adapters * r): scale * x A^T
  Workspace dlow_;           // like low_: scale * dy B
};

}  // namespace kintsugi
