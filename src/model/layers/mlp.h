#pragma once

#include "model/layers/sublayer.h"

namespace kintsugi {

// Feed-forward network: up projection, activation (GELU or SwiGLU), down projection.
class Mlp final : public Sublayer {
 public:
  explicit Mlp(const MlpSpec& spec) : spec_(spec), up_(spec.up), down_(spec.down) {}

  void declare(Declaration& d) override;
  void forward(const LayerRun& run, Tensor x) const override;
  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    down_.forward(run, y, run[activated_], residual);
  }
  void recompute(const LayerRun& run) const override;
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override;
  void backward_weight(const LayerRun& run, Tensor x) const override;
  void backward_output_weight(const LayerRun& run, Tensor dy, Tensor own_dy) const override {
    down_.backward_weight(run, dy, run[activated_], own_dy);
  }
  Linear* reader_of_x() override { return &up_; }
  Linear* reader_of_dy() override { return &down_; }

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
