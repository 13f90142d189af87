#pragma once

#include "model/layers/sublayer.h"

namespace kintsugi {

// Feed-forward network: up projection, activation (GELU or SwiGLU), down projection.
class Mlp final : public Sublayer {
 public:
  explicit Mlp(const MlpSpec& spec) : spec_(spec), up_(spec.up), down_(spec.down) {}

  void declare(Declaration& d) override;
  Linear& input() override { return up_; }
  Linear& output() override { return down_; }
  Tensor output_input(const LayerRun& run) const override { return run[activated_]; }
  void forward(const LayerRun& run, Tensor x) const override;
  void recompute(const LayerRun& run) const override;
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override;
  void backward_weight(const LayerRun& run, Tensor x) const override;

 private:
  bool gated() const { return spec_.activation == ActivationKind::Swiglu; }

  MlpSpec spec_;
  Linear up_, down_;
  Saved before_;          // (tokens, size or 2 size): the activation's input
  Saved activated_;       // (tokens, size)
  Workspace dbefore_;     // like before_
  Workspace dactivated_;  // like activated_, with SwiGLU only
};

}  // namespace kintsugi
