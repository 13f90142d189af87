#include "model/families/llama_like.h"

// Llama with biases on q, k and v.

namespace kintsugi {
namespace {

void read_qwen2(const ConfigObject& root, ModelConfig& config) {
  root.require_all("layer_types", "full_attention");
  read_llama_like(root, config, {.max_positions = 32768});
}

void write_qwen2(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  root["use_sliding_window"] = false;
  root["sliding_window"] = nullptr;
  root["max_window_layers"] = config.layers;
  write_rotation(config, root);
}

ModelSpec qwen2_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = llama_attention(config, layer);
    const std::string prefix = llama_prefix(layer) + "self_attn.";
    attention.qkv.biases = {prefix + "q_proj.bias", prefix + "k_proj.bias", prefix + "v_proj.bias"};
    model.layers.push_back(llama_layer(config, layer, std::move(attention)));
  }
  return model;
}

}  // namespace

const FamilyInfo kQwen2 = {.family = Family::Qwen2,
                           .model_type = "qwen2",
                           .architecture = "Qwen2ForCausalLM",
                           .classifier = "Qwen2ForSequenceClassification",
                           .positions = PositionKind::Rope,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = nullptr,
                           .read = read_qwen2,
                           .write = write_qwen2,
                           .spec = qwen2_spec};

}  // namespace kintsugi
