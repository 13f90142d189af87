#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/safetensors.h"

namespace kintsugi {

// Tensors in the files of a model that its configuration does not use (fewer layers, no biases): if
// they were ignored, another model than the trained one would be computed.
enum class UnusedWeights : std::uint8_t { Refuse, Allow };

// The names of the tensors that `model` does not load from files whose config.json is `stored`.
// Left out are buffers that the family declares, a copy of the embedding for a tied head, and the
// language model's head that a new classifier replaces.
std::vector<std::string> unused_weights(const SafetensorsModel& files, const ModelConfig& model,
                                        const ModelConfig& stored);

// UserError if there are some; with Allow, a note. `option` is what allows them.
void check_unused_weights(const SafetensorsModel& files, const ModelConfig& model,
                          const ModelConfig& stored, UnusedWeights unused,
                          const std::string& option = "--allow-unused-weights");

}  // namespace kintsugi
