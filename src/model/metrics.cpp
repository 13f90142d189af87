#include "model/metrics.h"

#include "model/block.h"
#include "model/layers/head.h"

namespace kintsugi {

ModelSize count_parameters(const ParameterSet& set) {
  ModelSize size;
  for (const Parameter& parameter : set.parameters()) {
    size.by_group[static_cast<std::size_t>(parameter.group)] += parameter.shape.elements();
    size.total += parameter.shape.elements();
    if (parameter.trained) size.trained += parameter.shape.elements();
  }
  return size;
}

LayerFlops forward_flops(const LayerSpec& layer, std::int64_t hidden_size, std::int64_t length) {
  Declaration declared({}, length);
  ModelSpec alone;
  alone.hidden_size = hidden_size;
  alone.layers = {layer};
  Block(alone, 0).declare(declared);
  return declared.flops();
}

TrainingFlops training_flops_per_token(const ModelConfig& config, std::int64_t sequence_length) {
  const ModelSpec model = model_spec(config);
  Declaration head({});
  Head(model).declare(head);
  LayerFlops forward = head.flops();
  for (const LayerSpec& layer : model.layers) {
    const LayerFlops flops = forward_flops(layer, model.hidden_size, sequence_length);
    forward.linear += flops.linear;
    forward.mixing_causal += flops.mixing_causal;
    forward.mixing_full += flops.mixing_full;
  }
  // Forward and backward together: three times forward, without the gradients of frozen matrices.
  double frozen = 0;
  const ParameterSet set(config);
  for (const Parameter& parameter : set.parameters())
    if (!parameter.trained && parameter.overwritten)
      frozen += 2.0 * static_cast<double>(parameter.global.elements());
  return {.linear = 3 * forward.linear - frozen,
          .attention_causal = 3 * forward.mixing_causal,
          .attention_full = 3 * forward.mixing_full};
}

}  // namespace kintsugi
