#include "model/layers/sublayer.h"

namespace kintsugi {
namespace {

// Feed-forward network: up projection, activation (GELU or SwiGLU), down projection.
class Mlp final : public Sublayer {
 public:
  explicit Mlp(const MlpSpec& spec) : spec_(spec), up_(spec.up), down_(spec.down) {}

  void declare(Declaration& d) override {
    up_.declare_outputs(d, ParameterGroup::Mlp, {1});
    down_.declare_inputs(d, ParameterGroup::Mlp);
    if (gated() || !up_.fuses_gelu()) down_.fp8().take_input_maxima(d, "activation maxima");
    if (gated() || !down_.fuses_gelu()) up_.fp8().take_gradient_maxima(d);
    const std::int64_t before = up_.outputs(), size = spec_.size / d.ranks().tensor;
    before_ = d.saved({.label = "mlp", .width = before});
    activated_ = d.saved({.label = "mlp activations",
                          .width = size,
                          .dropped_by = Recompute::Selective,
                          .temporary = down_.keeps_input()});
    dbefore_ = d.workspace(
        {.label = "gradient of mlp", .width = before, .training = true, .read_by_weights = true});
    if (gated())
      dactivated_ =
          d.workspace({.label = "gradient of mlp activations", .width = size, .training = true});
  }

  void forward(const LayerRun& run, Tensor x) const override {
    // With Recompute::Selective, the backward recomputes the activation from its rounded input. The
    // forward then uses the rounded input too, so that recomputing gives the same bits.
    if (!gated() && run.recompute != Recompute::Selective)
      return up_.forward_gelu(run, run[activated_], run[before_], x, down_.input_maxima(run));
    if (gated() && run.batch.cached != nullptr)
      return up_.forward_swiglu(run, run[activated_], run[before_], x);
    up_.forward(run, run[before_], x);
    recompute(run);
  }

  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    down_.forward(run, y, run[activated_], residual);
  }

  void recompute(const LayerRun& run) const override {
    if (gated())
      run.backend().swiglu_forward(run[activated_], run[before_], down_.input_maxima(run));
    else
      run.backend().gelu_forward(run[activated_], run[before_], down_.input_maxima(run));
  }

  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override {
    if (gated()) {
      down_.backward_input(run, run[dactivated_], dy);
      run.backend().swiglu_backward(run[dbefore_], run[dactivated_], run[before_],
                                    up_.gradient_maxima(run));
    } else {
      down_.backward_input_gelu(run, run[dbefore_], dy, run[before_], up_.gradient_maxima(run));
    }
    up_.backward_input(run, dx, run[dbefore_]);
  }

  void backward_weight(const LayerRun& run, Tensor x) const override {
    up_.backward_weight(run, run[dbefore_], x);
  }

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

}  // namespace

std::vector<LinearUse> linears_of(MlpSpec& spec) {
  return {{&spec.up, "mlp.up"}, {&spec.down, "mlp.down"}};
}

void clear_names_of(MlpSpec& spec) {
  for (LinearSpec* const linear : {&spec.up, &spec.down}) clear_names_of(*linear);
}

std::shared_ptr<Sublayer> make_sublayer(const MlpSpec& spec) { return std::make_shared<Mlp>(spec); }

}  // namespace kintsugi
