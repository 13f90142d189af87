#include "model/families/experts_like.h"

// Qwen3 with DeepSeek's experts in all but the first layers.

namespace kintsugi {
namespace {

void read_dots1(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("attention_bias", false);
  root.require_all("layer_types", "full_attention");
  read_llama_like(root, config, {});
  // Without layer_types, those from max_window_layers on have a window.
  if (!root.has("layer_types") && root.has("sliding_window") &&
      root.integer({"max_window_layers"}, 62) < config.layers)
    root.refuse("max_window_layers is below num_hidden_layers: sliding_window is not supported");
  read_biased_experts(root, config, {});
}

void write_dots1(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  write_biased_experts(config, root);
  root["sliding_window"] = nullptr;
  root["max_window_layers"] = config.layers;
  root["attention_bias"] = false;
  write_rotation(config, root);
}

void check_dots1(ModelConfig& config) {
  if (config.experts) check_biased_experts(config);
}

ModelSpec dots1_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = llama_attention(config, layer);
    add_qk_norms(attention, config, layer, QkNorm::PerHead);
    model.layers.push_back(
        llama_layer(config, layer, std::move(attention), biased_feed_forward(config, layer)));
  }
  return model;
}

}  // namespace

const FamilyInfo kDots1 = {.family = Family::Dots1,
                           .model_type = "dots1",
                           .architecture = "Dots1ForCausalLM",
                           .classifier = nullptr,
                           .positions = PositionKind::Rope,
                           .experts = true,
                           .bias = true,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = check_dots1,
                           .read = read_dots1,
                           .write = write_dots1,
                           .spec = dots1_spec};

}  // namespace kintsugi
