#include "model/families/experts_like.h"

// Llama with biases on q, k and v, of which the first half of each head is rotated, and with
// DeepSeek's experts in all but the first layers.

namespace kintsugi {
namespace {

constexpr double kRotated = 0.5;  // of a head

void read_glm4_moe(const ConfigObject& root, ModelConfig& config) {
  if (!root.flag("attention_bias", false))
    root.refuse("attention_bias is false, which is not supported (only true)");
  read_llama_like(root, config, {.max_positions = 131072, .rotated = kRotated});
  config.norm_eps = root.real({"rms_norm_eps"}, 1e-5);
  config.qk_norm = root.flag("use_qk_norm", false);
  read_biased_experts(root, config, {.normalize = true, .dense = 1});
}

void write_glm4_moe(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  write_biased_experts(config, root);
  root["num_nextn_predict_layers"] = 0;
  root["attention_bias"] = true;
  root["use_qk_norm"] = config.qk_norm;
  root["partial_rotary_factor"] = kRotated;
  write_rotation(config, root);
}

void check_glm4_moe(ModelConfig& config) {
  if (config.head_dim % 4 != 0)
    user_error("head_dim is {}: half of it is rotated in pairs, so 4 must divide it",
               config.head_dim);
  if (config.experts) check_biased_experts(config);
}

AttentionSpec glm4_moe_attention(const ModelConfig& config, int layer) {
  AttentionSpec attention = llama_attention(config, layer);
  const std::string prefix = llama_prefix(layer) + "self_attn.";
  attention.qkv.biases = {prefix + "q_proj.bias", prefix + "k_proj.bias", prefix + "v_proj.bias"};
  attention.rope->dim = config.head_dim / 2;
  if (config.qk_norm) add_qk_norms(attention, config, layer, QkNorm::PerHead);
  return attention;
}

ModelSpec glm4_moe_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer)
    model.layers.push_back(llama_layer(config, layer, glm4_moe_attention(config, layer),
                                       biased_feed_forward(config, layer)));
  return model;
}

}  // namespace

const FamilyInfo kGlm4Moe = {.family = Family::Glm4Moe,
                             .model_type = "glm4_moe",
                             .architecture = "Glm4MoeForCausalLM",
                             .classifier = nullptr,
                             .positions = PositionKind::Rope,
                             .experts = true,
                             .bias = true,
                             .qk_norm = true,
                             .buffers = {".rotary_emb.inv_freq"},
                             .further_layers = ".eh_proj.weight",
                             .check = check_glm4_moe,
                             .read = read_glm4_moe,
                             .write = write_glm4_moe,
                             .spec = glm4_moe_spec};

}  // namespace kintsugi
