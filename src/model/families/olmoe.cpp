#include "model/families/experts_like.h"

// Llama with norms over all heads of q and of k, and experts in every layer.

namespace kintsugi {
namespace {

const ExpertNames kOlmoeNames = {.count = "num_experts", .size = "intermediate_size"};

void read_olmoe(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("attention_bias", false);
  if (root.has("clip_qkv")) root.refuse("clip_qkv is not supported (only null)");
  read_llama_like(root, config, {.max_positions = 4096});
  read_experts(root, config, kOlmoeNames);
  config.norm_eps = root.real({"rms_norm_eps"}, 1e-5);
  config.experts->normalize = root.flag("norm_topk_prob", false);
}

void write_olmoe(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  write_experts(config, root, kOlmoeNames);
  root["norm_topk_prob"] = config.experts->normalize;
  root["clip_qkv"] = nullptr;
  root["attention_bias"] = false;
  write_rotation(config, root);
}

void check_olmoe(ModelConfig& config) {
  if (config.experts) check_only_experts(config);
}

ModelSpec olmoe_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = llama_attention(config, layer);
    add_qk_norms(attention, config, layer, QkNorm::Whole);
    model.layers.push_back(
        llama_layer(config, layer, std::move(attention), feed_forward(config, layer, kOlmoeNames)));
  }
  return model;
}

}  // namespace

const FamilyInfo kOlmoe = {.family = Family::Olmoe,
                           .model_type = "olmoe",
                           .architecture = "OlmoeForCausalLM",
                           .classifier = nullptr,
                           .positions = PositionKind::Rope,
                           .experts = true,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = check_olmoe,
                           .read = read_olmoe,
                           .write = write_olmoe,
                           .spec = olmoe_spec};

}  // namespace kintsugi
