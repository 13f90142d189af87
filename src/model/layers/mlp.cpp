#include "model/layers/mlp.h"

namespace kintsugi {

Mlp::Mlp(Backend& backend, const ParameterStore& store, const ModelConfig& config,
         const BlockNames& names)
    : backend_(&backend),
      activation_(config.traits().activation),
      up_(backend, store, names.up_weight, names.up_bias, config.traits().weights_in_out) {}

void Mlp::forward(Tensor x, const BlockStash& stash) const {
  if (activation_ == ActivationKind::Gelu && !stash.activation_rebuilt)
    return up_.forward_gelu(stash.activated, stash.up, x);
  up_.forward(stash.up, x);
  activate(stash);
}

void Mlp::activate(const BlockStash& stash) const {
  if (activation_ == ActivationKind::Swiglu)
    backend_->swiglu_forward(stash.activated, stash.up);
  else
    backend_->gelu_forward(stash.activated, stash.up);
}

void Mlp::backward_input(Tensor dnormed, const Linear& down, Tensor dy, const BlockStash& stash,
                         const BlockWorkspace& workspace) const {
  if (activation_ == ActivationKind::Swiglu) {
    down.backward_input(workspace.dactivated, dy);
    backend_->swiglu_backward(workspace.dup, workspace.dactivated, stash.up);
  } else {
    down.backward_input_gelu(workspace.dup, dy, stash.up);
  }
  up_.backward_input(dnormed, workspace.dup);
}

void Mlp::backward_weight(Tensor x, const BlockWorkspace& workspace, bool accumulate) const {
  up_.backward_weight(workspace.dup, x, accumulate);
}

}  // namespace kintsugi
