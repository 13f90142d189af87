#pragma once

#include <array>
#include <cstdint>

#include "model/declaration.h"

namespace kintsugi {

// Parameters by group, floating-point operations per trained token and bytes of training state:
// what `kintsugi model` prints and what MFU is computed from.
struct ModelSize {
  std::array<std::int64_t, kParameterGroups> by_group{};
  std::int64_t total = 0;
};
ModelSize count_parameters(const ParameterSet& set);

// Multiply-add counts 2; backward is twice forward; the embedding look-up is free, the head is not.
struct TrainingFlops {
  double linear = 0;            // matrix products with parameters
  double attention_causal = 0;  // between tokens: scores and values, the half below the diagonal
  double attention_full = 0;    // the whole square, as many papers count
  double causal() const { return linear + attention_causal; }
  double full() const { return linear + attention_full; }
};
// As the layer's declaration has them.
LayerFlops forward_flops(const LayerSpec& layer, std::int64_t hidden_size, std::int64_t length);
TrainingFlops training_flops_per_token(const ModelConfig& config, std::int64_t sequence_length);

}  // namespace kintsugi
