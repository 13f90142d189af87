#include "optim/update_rule.h"

namespace kintsugi {
namespace {

// Adam with decoupled weight decay (Loshchilov and Hutter).
class AdamW final : public ElementRule {
 public:
  explicit AdamW(const OptimizerSettings& settings) : settings_(settings) {}

  std::string_view name() const override { return "AdamW"; }
  std::vector<StateSlot> slots(DType precision) const override {
    const DType moments = moments_dtype(settings_, precision);
    return {{"exp_avg", "first moments", moments}, {"exp_avg_sq", "second moments", moments}};
  }

  // A head that is tied to the embedding is the embedding's table.
  bool decays(const Parameter& parameter) const override {
    return parameter.decay &&
           (settings_.decay_embeddings || parameter.group != ParameterGroup::Embedding);
  }

  void update(Backend& backend, Tensor weight, Tensor master, std::span<const Tensor> slots,
              Tensor gradient, Tensor scale, const UpdateOptions& options) const override {
    AdamWOptions adamw{.beta1 = settings_.beta1, .beta2 = settings_.beta2, .eps = settings_.eps};
    adamw.lr = options.lr;
    adamw.weight_decay = options.decays ? settings_.weight_decay : 0.0;
    adamw.step = options.step;
    adamw.first_element = options.first_element;
    adamw.rounding_key = rounding_key(settings_, options.step);
    backend.adamw(weight, master, slots[0], slots[1], gradient, scale, adamw);
  }

 private:
  OptimizerSettings settings_;
};

}  // namespace

std::shared_ptr<const ElementRule> make_adamw(const OptimizerSettings& settings) {
  return std::make_shared<AdamW>(settings);
}

}  // namespace kintsugi
