#pragma once

#include "model/layers/layer_run.h"

namespace kintsugi {

// y = x W^T + b, with W as its public file stores it. Several matrices that are stored one after
// the other (q, k, v; gate, up) act as one.
class Linear {
 public:
  explicit Linear(const LinearSpec& spec) : spec_(spec) {}

  // Sharded by outputs, each matrix with its number of copies, or by inputs.
  void declare_outputs(Declaration& d, ParameterGroup group, const std::vector<int>& copies);
  void declare_inputs(Declaration& d, ParameterGroup group);

  std::int64_t outputs() const { return spec_.in_out ? shape_[1] : shape_[0]; }  // of this rank

  void forward(const LayerRun& run, Tensor y, Tensor x, Tensor residual = {}) const;
  // Where the inputs are sharded: this rank's summand. One rank adds the bias.
  void forward_partial(const LayerRun& run, Tensor y, Tensor x, bool with_bias) const;
  void forward_gelu(const LayerRun& run, Tensor activated, Tensor y, Tensor x) const;
  // The two halves of the backward are independent of each other: schedules may run the second one
  // later.
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const;
  // Where x = gelu(before): straight to the gradient of `before`.
  void backward_input_gelu(const LayerRun& run, Tensor dbefore, Tensor dy, Tensor before) const;
  // The bias takes its gradient from the rows `bias_dy`; none: dy.
  void backward_weight(const LayerRun& run, Tensor dy, Tensor x, Tensor bias_dy = {}) const;

 private:
  void declare(Declaration& d, ParameterGroup group, Declaration::Cut::Along along,
               const std::vector<int>& copies);
  Tensor weight(const LayerRun& run) const { return run.store().weight(weight_, shape_); }
  Tensor bias(const LayerRun& run) const {
    return bias_ >= 0 ? run.store().weight(bias_, {outputs()}) : Tensor();
  }

  LinearSpec spec_;
  int weight_ = -1;
  int bias_ = -1;
  Shape shape_;  // of all matrices together, on this rank
};

}  // namespace kintsugi
