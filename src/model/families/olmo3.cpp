#include "model/families/olmo_like.h"

// OLMo 2 with sliding windows on most layers. Rotations are scaled on the others only.

namespace kintsugi {
namespace {

void read(const ConfigObject& root, ModelConfig& config) {
  read_olmo_like(root, config);
  config.sliding_window = root.integer({"sliding_window"}, 4096);
  config.layer_types = root.layer_types("layer_types", config.layers);
  if (config.layer_types.empty())
    config.layer_types = {LayerType::Sliding, LayerType::Sliding, LayerType::Sliding,
                          LayerType::Full};
}

void write(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_olmo_like(config, root);
  root["sliding_window"] = config.sliding_window;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int layer = 0; layer < config.layers; ++layer)
    types.push_back(to_string(config.layer_type(layer)));
  root["layer_types"] = std::move(types);
  // Version 5 reads the rotations of each type of layer here; from the keys above it would take
  // another rope_theta for the sliding ones.
  nlohmann::ordered_json full = root["rope_scaling"];
  if (full.is_null()) full = {{"rope_type", "default"}};
  full["rope_theta"] = config.rope_theta;
  root["rope_parameters"] = {
      {"full_attention", std::move(full)},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", config.rope_theta}}}};
}

ModelSpec spec(const ModelConfig& config) {
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
                           .positions = PositionKind::Rope,
                           .windows = true,
                           .check = nullptr,
                           .read = read,
                           .write = write,
                           .spec = spec};

}  // namespace kintsugi
