#include "model/metrics.h"

namespace kintsugi {

ModelSize count_parameters(const ParameterSet& set) {
  ModelSize size;
  for (const Parameter& parameter : set.parameters()) {
    size.by_group[static_cast<std::size_t>(parameter.group)] += parameter.shape.elements();
    size.total += parameter.shape.elements();
  }
  return size;
}

TrainingFlops training_flops_per_token(const ModelConfig& config, std::int64_t sequence_length) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double hidden = real(config.hidden_size), q_width = real(config.heads * config.head_dim);
  const double mlp_matrices = config.traits().activation == ActivationKind::Swiglu ? 3 : 2;
  const double block_weights =
      hidden * (real(config.qkv_rows()) + q_width + mlp_matrices * real(config.ffn_size));
  const double head_weights = hidden * real(config.vocab_size);

  // Forward and backward together: three times forward, 2 operations per multiply-add.
  TrainingFlops flops;
  flops.linear = 6 * (real(config.layers) * block_weights + head_weights);
  // Each query meets every key twice: in the scores and in the weighted sum of values.
  flops.attention_full = 6 * 2 * real(config.layers) * real(sequence_length) * q_width;
  flops.attention_causal = flops.attention_full / 2;
  return flops;
}

}  // namespace kintsugi
