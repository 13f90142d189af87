#include "model/families/experts_like.h"

namespace kintsugi {
namespace {

const ExpertNames kBiasedNames = {
    .count = "n_routed_experts", .size = "moe_intermediate_size", .bias = true};

}  // namespace

void read_experts(const ConfigObject& root, ModelConfig& config, const ExpertNames& names) {
  ExpertsConfig& experts = config.experts.emplace();
  // transformers 5 writes the number as num_local_experts.
  experts.count =
      root.has(names.count) ? root.integer({names.count}) : root.integer({"num_local_experts"});
  experts.chosen = root.integer({"num_experts_per_tok"});
  experts.size = root.integer({names.size});
}

void write_experts(const ModelConfig& config, nlohmann::ordered_json& root,
                   const ExpertNames& names) {
  root[names.count] = config.experts->count;
  root["num_experts_per_tok"] = config.experts->chosen;
  root[names.size] = config.experts->size;
  root["output_router_logits"] = false;
}

void read_biased_experts(const ConfigObject& root, ModelConfig& config,
                         const BiasedDefaults& defaults) {
  read_experts(root, config, kBiasedNames);
  ExpertsConfig& experts = *config.experts;
  experts.shared = root.integer({"n_shared_experts"}, 0);
  experts.normalize = root.flag("norm_topk_prob", defaults.normalize);
  experts.scale = root.real({"routed_scaling_factor"}, 1.0);
  experts.groups = root.integer({"n_group"}, 1);
  experts.top_groups = root.integer({"topk_group"}, 1);
  const std::int64_t dense = root.integer({"first_k_dense_replace"}, defaults.dense);
  if (dense < 0) root.refuse("first_k_dense_replace is {}: it must be 0 or more", dense);
  // More layers are refused later.
  for (std::int64_t layer = 0; layer < std::min({dense, config.layers, kMaxLayers}); ++layer)
    experts.dense_layers.push_back(layer);
}

void write_biased_experts(const ModelConfig& config, nlohmann::ordered_json& root) {
  const ExpertsConfig& experts = *config.experts;
  root[kBiasedNames.count] = experts.count;
  root["num_experts_per_tok"] = experts.chosen;
  root[kBiasedNames.size] = experts.size;
  root["n_shared_experts"] = experts.shared;
  root["norm_topk_prob"] = experts.normalize;
  root["routed_scaling_factor"] = experts.scale;
  root["n_group"] = experts.groups;
  root["topk_group"] = experts.top_groups;
  root["first_k_dense_replace"] = experts.dense_layers.size();
}

void check_biased_experts(const ModelConfig& config) {
  const std::vector<std::int64_t>& dense = config.experts->dense_layers;
  for (std::int64_t layer = 0; layer < std::ssize(dense); ++layer)
    if (std::ranges::find(dense, layer) == dense.end())
      user_error("experts.dense_layers of family {} must be the first layers, but {} is missing",
                 to_string(config.family), layer);
}

SublayerSpec biased_feed_forward(const ModelConfig& config, int layer) {
  return feed_forward(config, layer, kBiasedNames);
}

void check_softmax_experts(const ModelConfig& config) {
  const ExpertsConfig& experts = *config.experts;
  const char* const extra = experts.shared != 0       ? "experts.shared"
                            : experts.groups != 1     ? "experts.groups"
                            : experts.top_groups != 1 ? "experts.top_groups"
                            : experts.scale != 1      ? "experts.scale"
                                                      : nullptr;
  if (extra != nullptr)
    user_error("{} is given, but family {} has no such thing: remove it", extra,
               to_string(config.family));
}

void check_only_experts(const ModelConfig& config) {
  check_softmax_experts(config);
  if (!config.experts->dense_layers.empty())
    user_error("experts.dense_layers is given, but every layer of family {} has experts: remove it",
               to_string(config.family));
  if (config.experts->size != 0 && config.experts->size != config.ffn_size)
    user_error(
        "experts.size is {}, but the experts of family {} have the size ffn_size, {}: "
        "remove it",
        config.experts->size, to_string(config.family), config.ffn_size);
}

ExpertsSpec experts_spec(const ModelConfig& config, int layer, const ExpertNames& names) {
  const ExpertsConfig& experts = *config.experts;
  const std::string prefix = fmt::format("{}{}", llama_prefix(layer), names.module);
  const Init init{InitKind::Normal, config.init_std};
  ExpertsSpec spec{.count = experts.count,
                   .chosen = experts.chosen,
                   .hidden = config.hidden_size,
                   .size = experts.size,
                   .router = prefix + "gate.weight",
                   .up = {.outputs = {experts.size}, .inputs = config.hidden_size, .init = {init}},
                   .down = {.outputs = {config.hidden_size},
                            .inputs = experts.size,
                            .init = {residual_init(config)}},
                   .router_init = init,
                   .groups = experts.groups,
                   .top_groups = experts.top_groups,
                   .normalize = experts.normalize,
                   .even = config.balance.even,
                   .scale = experts.scale,
                   .balance_loss = config.balance.loss,
                   .z_loss = config.balance.z_loss,
                   .counts_last_step = config.balance.counts_last_step(),
                   .capacity = config.balance.capacity,
                   .layer = layer};
  if (names.bias) {
    spec.sigmoid = true;
    spec.bias = prefix + "gate.e_score_correction_bias";
  }
  if (experts.shared > 0)
    spec.shared = llama_mlp(config, prefix + "shared_experts.", experts.shared * experts.size);
  for (std::int64_t i = 0; i < experts.count; ++i) {
    const auto name = [&](std::string_view matrix) {
      return fmt::format("{}experts.{}.{}.weight", prefix, i, matrix);
    };
    spec.up.weights.push_back(name(names.matrices[0]));
    spec.up.weights.push_back(name(names.matrices[1]));
    spec.down.weights.push_back(name(names.matrices[2]));
  }
  return spec;
}

SublayerSpec feed_forward(const ModelConfig& config, int layer, const ExpertNames& names) {
  if (config.has_experts(layer)) return experts_spec(config, layer, names);
  return llama_mlp(config, layer);
}

}  // namespace kintsugi
