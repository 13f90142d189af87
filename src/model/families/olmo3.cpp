#include "model/families/olmo_like.h"

// OLMo 2 with sliding windows on most layers. RoPE scaling applies only to the full layers.

namespace kintsugi {
namespace {

void read_olmo3(const ConfigObject& root, ModelConfig& config) {
  read_olmo_like(root, config);
  config.sliding_window = root.integer({"sliding_window"}, 4096);
  config.layer_types = root.layer_types("layer_types", config.layers);
  if (config.layer_types.empty())
    config.layer_types = {LayerType::Sliding, LayerType::Sliding, LayerType::Sliding,
                          LayerType::Full};
}

void write_olmo3(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_olmo_like(config, root);
  root["sliding_window"] = config.sliding_window;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int layer = 0; layer < config.layers; ++layer)
    types.push_back(to_string(config.layer_type(layer)));
  root["layer_types"] = std::move(types);
  // Version 5 reads RoPE parameters per layer type here. From the keys above it would take a
  // different rope_theta for sliding layers.
  nlohmann::ordered_json full = root["rope_scaling"];
  if (full.is_null()) full = {{"rope_type", "default"}};
  full["rope_theta"] = config.rope_theta;
  root["rope_parameters"] = {
      {"full_attention", std::move(full)},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", config.rope_theta}}}};
}

ModelSpec olmo3_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = olmo_attention(config, layer);
    if (config.layer_type(layer) == LayerType::Sliding) {
      attention.window = config.sliding_window;
      attention.rope->scaling.reset();
    }
    model.layers.push_back(olmo_layer(config, layer, std::move(attention)));
  }
  return model;
}

}  // namespace

const FamilyInfo kOlmo3 = {.family = Family::Olmo3,
                           .model_type = "olmo3",
                           .architecture = "Olmo3ForCausalLM",
                           .classifier = "Olmo3ForSequenceClassification",
                           .positions = PositionKind::Rope,
                           .windows = true,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = nullptr,
                           .read = read_olmo3,
                           .write = write_olmo3,
                           .spec = olmo3_spec};

}  // namespace kintsugi
