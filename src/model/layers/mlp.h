#pragma once

#include "model/layers/linear.h"
#include "model/stash.h"

namespace kintsugi {

// The first half of the feed-forward network: up projection and activation (GELU, or SwiGLU on gate
// and up side by side). The down projection with the residual belongs to the block.
class Mlp {
 public:
  Mlp(Backend& backend, const ParameterStore& store, const ModelConfig& config,
      const BlockNames& names);

  void forward(Tensor x, const BlockStash& stash) const;  // x -> stash.up -> stash.activated
  void activate(const BlockStash& stash) const;  // stash.up -> stash.activated, also for recompute
  // From the gradient of what `down` makes of the activation to the gradient of x; workspace.dup
  // holds what backward_weight needs.
  void backward_input(Tensor dnormed, const Linear& down, Tensor dy, const BlockStash& stash,
                      const BlockWorkspace& workspace) const;
  void backward_weight(Tensor x, const BlockWorkspace& workspace, bool accumulate) const;

 private:
  Backend* backend_;
  ActivationKind activation_;
  Linear up_;
};

}  // namespace kintsugi
