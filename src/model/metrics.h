#pragma once

#include <array>
#include <cstdint>

#include "model/declaration.h"

namespace kintsugi {

// Parameter counts and FLOPs per trained token. `kintsugi model` prints them, and MFU is computed
// from them.
struct ModelSize {
  std::array<std::int64_t, kParameterGroups> by_group{};
  std::int64_t total = 0;
  std::int64_t active = 0;  // without the experts that a token does not use
  std::int64_t trained = 0;
};
ModelSize count_parameters(const ParameterSet& set);

// FLOPs per token. A multiply-add counts 2, backward counts twice forward; once for a matrix that
// is not trained, and not at all below the lowest layer that is. The embedding look-up counts 0;
// the LM head is included.
struct TrainingFlops {
  double linear = 0;            // matmuls with parameters
  double attention_causal = 0;  // between tokens: scores and values, the half below the diagonal
  double attention_full = 0;    // the full square, as many papers count
  double causal() const { return linear + attention_causal; }
  double full() const { return linear + attention_full; }
};
// FLOPs per token, as the layer declares them.
LayerFlops forward_flops(const LayerSpec& layer, std::int64_t hidden_size, std::int64_t length);
TrainingFlops training_flops_per_token(const ModelConfig& config, std::int64_t sequence_length);

}  // namespace kintsugi
