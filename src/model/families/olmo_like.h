#pragma once

#include "model/families/llama_like.h"

namespace kintsugi {

// Common code of OLMo 2 and 3.
void read_olmo_like(const ConfigObject& root, ModelConfig& config);
void write_olmo_like(const ModelConfig& config, nlohmann::ordered_json& root);
AttentionSpec olmo_attention(const ModelConfig& config, int layer);
LayerSpec olmo_layer(const ModelConfig& config, int layer, AttentionSpec attention);

}  // namespace kintsugi
