#include "model/families/llama_like.h"

// Llama with norms on each head of q and k.

namespace kintsugi {
namespace {

void read_qwen3(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("attention_bias", false);
  root.require_all("layer_types", "full_attention");
  // head_dim defaults to 128, independent of the other sizes.
  read_llama_like(root, config, {.head_dim = 128, .max_positions = 32768});
}

void write_qwen3(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  root["use_sliding_window"] = false;
  root["sliding_window"] = nullptr;
  root["max_window_layers"] = config.layers;
  root["attention_bias"] = false;
  write_rotation(config, root);
}

ModelSpec qwen3_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = llama_attention(config, layer);
    add_qk_norms(attention, config, layer, QkNorm::PerHead);
    model.layers.push_back(llama_layer(config, layer, std::move(attention)));
  }
  return model;
}

}  // namespace

const FamilyInfo kQwen3 = {.family = Family::Qwen3,
                           .model_type = "qwen3",
                           .architecture = "Qwen3ForCausalLM",
                           .classifier = "Qwen3ForSequenceClassification",
                           .positions = PositionKind::Rope,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = nullptr,
                           .read = read_qwen3,
                           .write = write_qwen3,
                           .spec = qwen3_spec};

}  // namespace kintsugi
