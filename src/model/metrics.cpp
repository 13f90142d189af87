#include "model/metrics.h"

#include <cmath>

#include "model/block.h"
#include "model/layers/head.h"
#include "model/lora.h"

namespace kintsugi {

ModelSize count_parameters(const ParameterSet& set) {
  ModelSize size;
  double active = 0;
  for (const Parameter& parameter : set.parameters()) {
    if (parameter.wide) continue;
    size.by_group[static_cast<std::size_t>(parameter.group)] += parameter.shape.elements();
    size.total += parameter.shape.elements();
    active += parameter.used * static_cast<double>(parameter.shape.elements());
    if (parameter.trained) size.trained += parameter.shape.elements();
  }
  size.active = std::llround(active);
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
  const int first_trained = first_trained_layer(config);
  Declaration head({});
  Head(model).declare(head);
  // Forward and backward together: three times forward, below the lowest trained layer once.
  TrainingFlops sum{.linear = 3 * head.flops().linear};
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    const LayerFlops forward =
        forward_flops(model.layers[layer], model.hidden_size, sequence_length);
    const double times = layer < first_trained ? 1 : 3;
    sum.linear += times * forward.linear;
    sum.attention_causal += times * forward.mixing_causal;
    sum.attention_full += times * forward.mixing_full;
  }
  // Without the gradients of matrices that are not trained.
  const ParameterSet set(config);
  for (const Parameter& parameter : set.parameters()) {
    const Bucket& bucket = set.buckets()[parameter.bucket];
    const bool counted = bucket.role != Bucket::Role::Block || bucket.layer >= first_trained;
    if (!parameter.trained && counted) sum.linear -= parameter.flops;
  }
  return sum;
}

}  // namespace kintsugi
