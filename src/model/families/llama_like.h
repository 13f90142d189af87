#pragma once

#include "model/families/config_json.h"
#include "model/families/family.h"

namespace kintsugi {

// Common code of the families that follow Llama: RMSNorm, RoPE, SwiGLU, no biases.

struct LlamaDefaults {
  std::int64_t head_dim = 0;  // 0: hidden_size / heads
  std::int64_t max_positions = 2048;
  double rotated = 1;  // the part of a head that is rotated, which config.json must state
};
void read_llama_like(const ConfigObject& root, ModelConfig& config, const LlamaDefaults& defaults);
void write_llama_like(const ModelConfig& config, nlohmann::ordered_json& root);
void write_rotation(const ModelConfig& config, nlohmann::ordered_json& root);

// A ModelSpec with embedding and head; the family adds the layers.
ModelSpec llama_frame(const ModelConfig& config);
NormSpec llama_norm(const ModelConfig& config, const std::string& name);
RopeSpec llama_rope(const ModelConfig& config);
AttentionSpec llama_attention(const ModelConfig& config, int layer);
MlpSpec llama_mlp(const ModelConfig& config, int layer);
MlpSpec llama_mlp(const ModelConfig& config, const std::string& prefix, std::int64_t size);
// A layer with norms before attention and before the MLP, or what is in its place.
LayerSpec llama_layer(const ModelConfig& config, int layer, AttentionSpec attention);
LayerSpec llama_layer(const ModelConfig& config, int layer, SublayerSpec attention,
                      SublayerSpec feed_forward);
void add_qk_norms(AttentionSpec& attention, const ModelConfig& config, int layer, QkNorm kind);
inline std::string llama_prefix(int layer) { return fmt::format("model.layers.{}.", layer); }

// Initialization of matrices whose outputs are added to the residual stream, two per layer. As in
// GPT-2, the variance of the stream does not depend on the depth.
Init residual_init(const ModelConfig& config);

}  // namespace kintsugi
