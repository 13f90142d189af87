#include "model/layers/linear.h"

namespace kintsugi {

Linear::Linear(Backend& backend, const ParameterStore& store,
               const std::vector<std::string>& weights, const std::vector<std::string>& biases,
               bool in_out)
    : backend_(&backend), store_(&store), in_out_(in_out) {
  const ParameterSet& set = store.set();
  weight_ = set.index(weights.front());
  shape_ = set[weight_].shape;
  for (std::size_t i = 1; i < weights.size(); ++i) {
    const Parameter& next = set[weight_ + static_cast<int>(i)];
    KINTSUGI_CHECK(next.name == weights[i] && next.packed, "{} does not follow {} in memory",
                   weights[i], weights[0]);
    shape_[0] += next.shape[0];
  }
  if (!biases.empty()) bias_ = set.index(biases.front());
}

void Linear::forward(Tensor y, Tensor x, Tensor residual) const {
  backend_->matmul(y, x, weight(), {.transpose_b = !in_out_, .bias = bias(), .residual = residual});
}

void Linear::forward_partial(Tensor y, Tensor x, bool with_bias) const {
  backend_->matmul(y, x, weight(),
                   {.transpose_b = !in_out_, .bias = with_bias ? bias() : Tensor()});
}

void Linear::forward_gelu(Tensor activated, Tensor y, Tensor x) const {
  backend_->matmul(y, x, weight(), {.transpose_b = !in_out_, .bias = bias(), .gelu = activated});
}

void Linear::backward_input(Tensor dx, Tensor dy) const {
  backend_->matmul(dx, dy, weight(), {.transpose_b = in_out_});
}

void Linear::backward_input_gelu(Tensor dbefore, Tensor dy, Tensor before) const {
  backend_->matmul(dbefore, dy, weight(), {.transpose_b = in_out_, .gelu_input = before});
}

void Linear::backward_weight(Tensor dy, Tensor x, bool accumulate, Tensor bias_dy) const {
  const Tensor gradient = store_->gradient(weight_, shape_);
  backend_->matmul(gradient, in_out_ ? x : dy, in_out_ ? dy : x,
                   {.transpose_a = true, .accumulate = accumulate});
  if (bias_ >= 0)
    backend_->bias_backward(store_->gradient(bias_, {outputs()}), bias_dy ? bias_dy : dy);
}

}  // namespace kintsugi
