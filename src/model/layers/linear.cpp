#include "model/layers/linear.h"

namespace kintsugi {

void Linear::declare_outputs(Declaration& d, ParameterGroup group, const std::vector<int>& copies) {
  declare(d, group, Declaration::Shard::Along::Outputs, copies);
}

void Linear::declare_inputs(Declaration& d, ParameterGroup group) {
  declare(d, group, Declaration::Shard::Along::Inputs, {1});
}

void Linear::declare(Declaration& d, ParameterGroup group, Declaration::Shard::Along along,
                     const std::vector<int>& copies) {
  by_inputs_ = along == Declaration::Shard::Along::Inputs;
  std::vector<Declaration::Shard> shards;
  for (std::size_t i = 0; i < spec_.weights.size(); ++i) {
    const int of_matrix = copies[i % copies.size()];
    shards.push_back(
        of_matrix == kOnEveryRank
            ? Declaration::Shard{.partial = true}
            : Declaration::Shard{.along = along, .parts = spec_.parts, .copies = of_matrix});
  }
  const auto options = [&](std::size_t i, const Init& init) {
    return Declaration::Options{.group = group,
                                .init = init,
                                .shard = shards[i],
                                .in_out = spec_.in_out,
                                .packed = i > 0,
                                .hidden = true,
                                .matrices = spec_.matrices,
                                .turn = spec_.turn};
  };
  std::vector<std::int64_t> outputs;
  for (std::size_t i = 0; i < spec_.weights.size(); ++i) {
    const int id = d.matrix(spec_.weights[i], spec_.outputs[i], spec_.inputs,
                            options(i, spec_.init[i % spec_.init.size()]));
    const Shape& local = d.parameters().back().shape;
    if (i == 0) weight_ = id, shape_ = local;
    if (i > 0) shape_[0] += local[0];
    outputs.push_back(local[spec_.in_out ? 1 : 0]);
  }
  for (std::size_t i = 0; i < spec_.biases.size(); ++i) {
    Declaration::Options bias = options(i, {InitKind::Zeros});
    bias.hidden = false;
    if (by_inputs_) bias.shard = {};
    const int id = d.vector(spec_.biases[i], spec_.outputs[i], bias);
    if (i == 0) bias_ = id;
  }
  adapters_.declare(d,
                    {.outputs = outputs,
                     .whole_outputs = spec_.outputs,
                     .inputs = shape_[spec_.in_out ? 0 : 1],
                     .whole_inputs = spec_.inputs},
                    shards);
  fp8_.declare(d, weight_, shape_, spec_.in_out, adapters_.any());
}

MatmulOptions Linear::forward_options(const LayerRun& run) const {
  MatmulOptions options = run.generation_options();
  options.transpose_b = !spec_.in_out;
  if (!by_inputs_ || run.tensor().rank() == 0) options.bias = bias(run);
  return options;
}

// The matmul with W, to which the adapters' part of y is added.
void Linear::multiply(const LayerRun& run, Tensor y, Tensor x, MatmulOptions options) const {
  if (adapters_.any()) {
    adapters_.forward(run, y, x, options.residual);
    options.residual = y;
  }
  if (in_fp8(run)) return fp8_.forward(run, y, x, options);
  run.backend().matmul(y, x, weight(run), options);
}

void Linear::forward(const LayerRun& run, Tensor y, Tensor x, Tensor residual) const {
  MatmulOptions options = forward_options(run);
  options.residual = residual;
  multiply(run, y, x, options);
}

void Linear::forward_gelu(const LayerRun& run, Tensor activated, Tensor y, Tensor x,
                          const Maxima& maxima) const {
  MatmulOptions options = forward_options(run);
  if (fuses_gelu()) options.gelu = activated;
  multiply(run, y, x, options);
  if (!fuses_gelu()) run.backend().gelu_forward(activated, y, maxima);
}

void Linear::forward_swiglu(const LayerRun& run, Tensor activated, Tensor y, Tensor x) const {
  MatmulOptions options = forward_options(run);
  options.swiglu = activated;
  multiply(run, y, x, options);
}

// The same for the gradient of x.
void Linear::multiply_back(const LayerRun& run, Tensor dx, Tensor dy, Tensor gelu_input) const {
  MatmulOptions options{.transpose_b = spec_.in_out, .gelu_input = gelu_input};
  if (adapters_.any()) {
    adapters_.backward_input(run, dx, dy);
    options.residual = dx;
  }
  if (in_fp8(run)) return fp8_.backward_input(run, dx, dy, options);
  run.backend().matmul(dx, dy, weight(run), options);
}

void Linear::backward_input(const LayerRun& run, Tensor dx, Tensor dy) const {
  multiply_back(run, dx, dy);
}

void Linear::backward_input_gelu(const LayerRun& run, Tensor dbefore, Tensor dy, Tensor before,
                                 const Maxima& maxima) const {
  multiply_back(run, dbefore, dy, fuses_gelu() ? before : Tensor());
  if (!fuses_gelu()) run.backend().gelu_backward(dbefore, dbefore, before, maxima);
}

void Linear::backward_weight(const LayerRun& run, Tensor dy, Tensor x, Tensor bias_dy) const {
  const Tensor gradient = run.store().gradient(weight_, shape_);
  if (gradient && fp8_.has_weight_gradient())  // in_fp8() is true in every step
    fp8_.backward_weight(run, gradient, x);
  else if (gradient)
    run.backend().matmul(gradient, spec_.in_out ? x : dy, spec_.in_out ? dy : x,
                         {.transpose_a = true, .accumulate = run.accumulates()});
  if (bias_ >= 0)
    if (const Tensor of_bias = run.store().gradient(bias_, {outputs()}))
      run.backend().bias_backward(of_bias, bias_dy ? bias_dy : dy);
  if (adapters_.any()) adapters_.backward_weight(run, dy, x);
}

}  // namespace kintsugi
