#include "model/families/olmo_like.h"

namespace kintsugi {

void read_olmo_like(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("attention_bias", false);
  read_llama_like(root, config, {});
}

void write_olmo_like(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  root["attention_bias"] = false;
  write_rotation(config, root);
}

AttentionSpec olmo_attention(const ModelConfig& config, int layer) {
  AttentionSpec attention = llama_attention(config, layer);
  const std::string prefix = llama_prefix(layer) + "self_attn.";
  attention.qk_norm = QkNorm::Whole;
  attention.q_norm = llama_norm(config, prefix + "q_norm");
  attention.k_norm = llama_norm(config, prefix + "k_norm");
  attention.out.init = attention.qkv.init;  // the norm after it sets the scale
  return attention;
}

LayerSpec olmo_layer(const ModelConfig& config, int layer, AttentionSpec attention) {
  const std::string prefix = llama_prefix(layer);
  MlpSpec mlp = llama_mlp(config, layer);
  mlp.down.init = mlp.up.init;
  return {{{.after = llama_norm(config, prefix + "post_attention_layernorm"),
            .sublayer = std::move(attention)},
           {.after = llama_norm(config, prefix + "post_feedforward_layernorm"),
            .sublayer = std::move(mlp)}}};
}

}  // namespace kintsugi
