#include "model/families/experts_like.h"

// Llama with experts in every layer, whose weights always add up to 1.

namespace kintsugi {
namespace {

const ExpertNames kMixtralNames = {.count = "num_local_experts",
                                   .size = "intermediate_size",
                                   .module = "block_sparse_moe.",
                                   .matrices = {"w1", "w3", "w2"}};

void read_mixtral(const ConfigObject& root, ModelConfig& config) {
  if (root.has("sliding_window")) root.refuse("sliding_window is not supported (only null)");
  read_llama_like(root, config, {.max_positions = 131072});
  read_experts(root, config, kMixtralNames);
}

void write_mixtral(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  write_experts(config, root, kMixtralNames);
  root["router_jitter_noise"] = 0.0;
  root["sliding_window"] = nullptr;
  write_rotation(config, root);
}

void check_mixtral(ModelConfig& config) {
  if (!config.experts) return;
  check_only_experts(config);
  if (!config.experts->normalize)
    user_error("experts.normalize is false, but the weights of {} always add up to 1: remove it",
               to_string(config.family));
}

ModelSpec mixtral_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer)
    model.layers.push_back(llama_layer(config, layer, llama_attention(config, layer),
                                       feed_forward(config, layer, kMixtralNames)));
  return model;
}

}  // namespace

const FamilyInfo kMixtral = {.family = Family::Mixtral,
                             .model_type = "mixtral",
                             .architecture = "MixtralForCausalLM",
                             .classifier = "MixtralForSequenceClassification",
                             .positions = PositionKind::Rope,
                             .experts = true,
                             .buffers = {".rotary_emb.inv_freq"},
                             .check = check_mixtral,
                             .read = read_mixtral,
                             .write = write_mixtral,
                             .spec = mixtral_spec};

}  // namespace kintsugi
