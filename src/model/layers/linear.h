#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/parameter_set.h"

namespace kintsugi {

// y = x W^T + b, with W as its public file stores it: [out, in], or [in, out] for GPT-2. Several
// parameters that lie side by side (q, k, v; gate, up) act as one matrix.
class Linear {
 public:
  Linear(Backend& backend, const ParameterStore& store, const std::vector<std::string>& weights,
         const std::vector<std::string>& biases, bool in_out);

  std::int64_t inputs() const { return in_out_ ? shape_[0] : shape_[1]; }
  std::int64_t outputs() const { return in_out_ ? shape_[1] : shape_[0]; }

  void forward(Tensor y, Tensor x, Tensor residual = {}) const;
  // Where the inputs are cut among ranks: this rank's summand. One rank brings the bias.
  void forward_partial(Tensor y, Tensor x, bool with_bias) const;
  void forward_gelu(Tensor activated, Tensor y, Tensor x) const;  // activated = gelu(y)
  // The two halves of the backward are independent of each other: schedules may run the second one
  // later.
  void backward_input(Tensor dx, Tensor dy) const;
  // Where x = gelu(before): straight to the gradient of `before`.
  void backward_input_gelu(Tensor dbefore, Tensor dy, Tensor before) const;
  // The bias takes its gradient from the rows `bias_dy`; none: dy.
  void backward_weight(Tensor dy, Tensor x, bool accumulate, Tensor bias_dy = {}) const;

 private:
  Tensor weight() const { return store_->weight(weight_, shape_); }
  Tensor bias() const { return bias_ >= 0 ? store_->weight(bias_, {outputs()}) : Tensor(); }

  Backend* backend_;
  const ParameterStore* store_;
  int weight_ = -1;
  int bias_ = -1;
  Shape shape_;
  bool in_out_;
};

}  // namespace kintsugi
