#include "model/families/llama_like.h"

namespace kintsugi {
namespace {

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
  add_qk_norms(attention, config, layer, QkNorm::Whole);
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

// ---- OLMo 2: Llama with the norms after attention and MLP, and norms over all heads of q and of k

void read_olmo2(const ConfigObject& root, ModelConfig& config) {
  root.require_all("layer_types", "full_attention");
  read_olmo_like(root, config);
}

ModelSpec olmo2_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer)
    model.layers.push_back(olmo_layer(config, layer, olmo_attention(config, layer)));
  return model;
}

// ---- OLMo 3: sliding windows on most layers. RoPE scaling applies only to the full layers

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

const FamilyInfo kOlmo2 = {.family = Family::Olmo2,
                           .model_type = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .classifier = "Olmo2ForSequenceClassification",
                           .positions = PositionKind::Rope,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = nullptr,
                           .read = read_olmo2,
                           .write = write_olmo_like,
                           .spec = olmo2_spec};

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
