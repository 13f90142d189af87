#pragma once

#include <string>
#include <string_view>

#include "model/parameter_set.h"
#include "model/spec.h"

namespace kintsugi {

// Low-rank adapters (LoraConfig) and frozen parameters. The parameters of an adapter have the names
// of PEFT's files: base_model.model.MODULE.lora_A.weight [r, in] and .lora_B.weight [out, r].
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

// Adds adapters to the matrices that LoraConfig::targets names.
void add_adapters(ModelSpec& model, const LoraConfig& lora);

// Whether the parameter is frozen: with adapters, all but them and LoraConfig::train are, and the
// head of a classifier; without, those that ModelConfig::freeze matches.
bool is_frozen(const ModelConfig& config, const Parameter& parameter);
// Whether gradients train it: it is neither frozen nor wide.
bool is_trained(const ModelConfig& config, const Parameter& parameter);

// The lowest layer with a parameter that is trained; -1 if one of the embedding is, the number of
// layers if only the head has some. A backward ends there.
int first_trained_layer(const ModelConfig& config);

// Throws UserError if a pattern or target matches nothing, if only some of the matrices that are
// computed as one are frozen, or if nothing is trained.
void check_trained(const ModelConfig& config);

}  // namespace kintsugi
