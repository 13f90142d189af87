#include "optim/adamw.h"

#include "core/philox.h"

namespace kintsugi {

AdamW::AdamW(const OptimizerSettings& settings)
    : options_{.beta1 = settings.beta1, .beta2 = settings.beta2, .eps = settings.eps},
      settings_(settings) {}

std::vector<StateSlot> AdamW::slots(DType precision) const {
  const DType moments = moments_dtype(settings_, precision);
  return {{"exp_avg", "first moments", moments}, {"exp_avg_sq", "second moments", moments}};
}

// A head that is tied to the embedding is the embedding's table.
bool AdamW::decays(const Parameter& parameter) const {
  return parameter.decay &&
         (settings_.decay_embeddings || parameter.group != ParameterGroup::Embedding);
}

void AdamW::update(Backend& backend, Tensor weight, Tensor master, std::span<const Tensor> slots,
                   Tensor gradient, Tensor scale, const UpdateOptions& options) const {
  AdamWOptions adamw = options_;
  adamw.lr = options.lr;
  adamw.weight_decay = options.decays ? settings_.weight_decay : 0.0;
  adamw.step = options.step;
  adamw.first_element = options.first_element;
  if (settings_.stochastic_rounding)
    adamw.rounding_key =
        derive_key(settings_.seed, 0x50FF, static_cast<std::uint64_t>(options.step)) | 1;
  backend.adamw(weight, master, slots[0], slots[1], gradient, scale, adamw);
}

}  // namespace kintsugi
