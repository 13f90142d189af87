#include "model/families/experts_like.h"

// Qwen3 with experts in most layers.

namespace kintsugi {
namespace {

const ExpertNames kQwen3MoeNames = {.count = "num_experts", .size = "moe_intermediate_size"};

// Layers that are listed have an MLP, and those between every decoder_sparse_step-th.
std::vector<std::int64_t> dense_layers(const ConfigObject& root, const ModelConfig& config) {
  std::vector<std::int64_t> dense = root.integers("mlp_only_layers");
  const std::int64_t step = root.integer({"decoder_sparse_step"}, 1);
  if (step < 1) root.refuse("decoder_sparse_step is {}: it must be 1 or more", step);
  // More layers are refused later.
  for (std::int64_t layer = 0; layer < std::min(config.layers, kMaxLayers); ++layer)
    if ((layer + 1) % step != 0) dense.push_back(layer);
  return dense;
}

void read_qwen3_moe(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("attention_bias", false);
  read_llama_like(root, config, {.max_positions = 32768});
  read_experts(root, config, kQwen3MoeNames);
  config.experts->normalize = root.flag("norm_topk_prob", false);
  config.experts->dense_layers = dense_layers(root, config);
}

void write_qwen3_moe(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  write_experts(config, root, kQwen3MoeNames);
  root["norm_topk_prob"] = config.experts->normalize;
  root["decoder_sparse_step"] = 1;
  root["mlp_only_layers"] = config.experts->dense_layers;
  root["use_sliding_window"] = false;
  root["sliding_window"] = nullptr;
  root["attention_bias"] = false;
  write_rotation(config, root);
}

void check_qwen3_moe(ModelConfig& config) {
  if (config.experts) check_softmax_experts(config);
}

ModelSpec qwen3_moe_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = llama_attention(config, layer);
    add_qk_norms(attention, config, layer, QkNorm::PerHead);
    model.layers.push_back(llama_layer(config, layer, std::move(attention),
                                       feed_forward(config, layer, kQwen3MoeNames)));
  }
  return model;
}

}  // namespace

const FamilyInfo kQwen3Moe = {.family = Family::Qwen3Moe,
                              .model_type = "qwen3_moe",
                              .architecture = "Qwen3MoeForCausalLM",
                              .classifier = "Qwen3MoeForSequenceClassification",
                              .positions = PositionKind::Rope,
                              .experts = true,
                              .buffers = {".rotary_emb.inv_freq"},
                              .check = check_qwen3_moe,
                              .read = read_qwen3_moe,
                              .write = write_qwen3_moe,
                              .spec = qwen3_moe_spec};

}  // namespace kintsugi
