#pragma once

#include "model/families/config_json.h"
#include "model/families/family.h"

namespace kintsugi {

// Common code of GPT-2 and BLOOM: LayerNorm, GELU, a bias on every matrix, q, k and v in one
// matrix.

// The public parameter names, which differ between the two.
struct Gpt2Names {
  const char *qkv, *out, *up, *down, *norm1, *norm2;
};
AttentionSpec gpt2_attention(const ModelConfig& config, const Gpt2Names& names, int layer,
                             bool in_out);
LayerSpec gpt2_layer(const ModelConfig& config, const Gpt2Names& names, int layer,
                     AttentionSpec attention, bool in_out);
ModelSpec gpt2_frame(const ModelConfig& config, const std::string& table);
NormSpec gpt2_norm(const ModelConfig& config, const std::string& name);
void check_gpt2_like(ModelConfig& config);

}  // namespace kintsugi
