#include <cmath>

#include "model/families/experts_like.h"
#include "model/positions.h"

// Llama with latent attention, and with experts in all but the first layers.

namespace kintsugi {
namespace {

constexpr double kLatentNormEps = 1e-6;  // transformers has no key for it

void read_deepseek_v3(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("attention_bias", false);
  root.require_flag("rope_interleave", true);
  root.require_text({"scoring_func"}, {"sigmoid"});
  root.require_text({"topk_method"}, {"noaux_tc"});
  if (const std::int64_t every = root.integer({"moe_layer_freq"}, 1); every != 1)
    root.refuse("moe_layer_freq is {}, which is not supported (only 1)", every);
  read_llama_like(root, config, {.max_positions = 4096});
  config.head_dim = 0;  // the key has the size of the rotated part
  config.latent = LatentConfig{.query_rank = root.integer({"q_lora_rank"}, 0),
                               .rank = root.integer({"kv_lora_rank"}),
                               .plain_dim = root.integer({"qk_nope_head_dim"}),
                               .rotary_dim = root.integer({"qk_rope_head_dim"}),
                               .value_dim = root.integer({"v_head_dim"})};
  read_biased_experts(root, config, {.normalize = true, .dense = 3});
}

void write_deepseek_v3(const ModelConfig& config, nlohmann::ordered_json& root) {
  const LatentConfig& latent = *config.latent;
  write_llama_like(config, root);
  root["head_dim"] = latent.rotary_dim;
  root["q_lora_rank"] = nullptr;
  if (latent.query_rank > 0) root["q_lora_rank"] = latent.query_rank;
  root["kv_lora_rank"] = latent.rank;
  root["qk_nope_head_dim"] = latent.plain_dim;
  root["qk_rope_head_dim"] = latent.rotary_dim;
  root["v_head_dim"] = latent.value_dim;
  write_biased_experts(config, root);
  root["moe_layer_freq"] = 1;
  root["scoring_func"] = "sigmoid";
  root["topk_method"] = "noaux_tc";
  root["num_nextn_predict_layers"] = 0;
  root["attention_bias"] = false;
  root["rope_interleave"] = true;
  write_rotation(config, root);
}

void check_deepseek_v3(ModelConfig& config) {
  if (config.experts) check_biased_experts(config);
}

// Of the scores: YaRN's factor is applied to queries and keys.
double score_scale(const ModelConfig& config) {
  const double scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  if (!config.rope_scaling || config.rope_scaling->mscale_all_dim == 0) return scale;
  const double magnitude =
      yarn_magnitude(*config.rope_scaling, config.rope_scaling->mscale_all_dim);
  return scale * magnitude * magnitude;
}

LatentAttentionSpec latent_attention(const ModelConfig& config, int layer) {
  const LatentConfig& latent = *config.latent;
  const std::string prefix = llama_prefix(layer) + "self_attn.";
  const auto linear = [&](const char* name, std::int64_t outputs, std::int64_t inputs) {
    return LinearSpec{.weights = {fmt::format("{}{}.weight", prefix, name)},
                      .outputs = {outputs},
                      .inputs = inputs,
                      .init = {{InitKind::Normal, config.init_std}}};
  };
  const auto norm = [&](const char* name) {
    return NormSpec{.kind = NormKind::Rms, .eps = kLatentNormEps, .name = prefix + name};
  };
  const std::int64_t queries = config.heads * config.head_dim, rank = latent.query_rank;
  LatentAttentionSpec spec{
      .heads = config.heads,
      .query_rank = rank,
      .rank = latent.rank,
      .plain_dim = latent.plain_dim,
      .rotary_dim = latent.rotary_dim,
      .value_dim = latent.value_dim,
      .down =
          linear(rank > 0 ? "q_a_proj" : "q_proj", rank > 0 ? rank : queries, config.hidden_size),
      .query_up = {},
      .up = linear("kv_b_proj", config.heads * (latent.plain_dim + latent.value_dim), latent.rank),
      .out = linear("o_proj", config.hidden_size, config.heads * latent.value_dim),
      .query_norm = {},
      .norm = norm("kv_a_layernorm"),
      .rope = llama_rope(config),
      .scale = score_scale(config)};
  spec.down.weights.push_back(prefix + "kv_a_proj_with_mqa.weight");
  spec.down.outputs.push_back(latent.rank + latent.rotary_dim);
  if (rank > 0) {
    spec.query_up = linear("q_b_proj", queries, rank);
    spec.query_norm = norm("q_a_layernorm");
  }
  spec.out.init = {residual_init(config)};
  spec.rope.dim = latent.rotary_dim;
  return spec;
}

ModelSpec deepseek_v3_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer)
    model.layers.push_back(llama_layer(config, layer, latent_attention(config, layer),
                                       biased_feed_forward(config, layer)));
  return model;
}

}  // namespace

const FamilyInfo kDeepseekV3 = {.family = Family::DeepseekV3,
                                .model_type = "deepseek_v3",
                                .architecture = "DeepseekV3ForCausalLM",
                                .classifier = "DeepseekV3ForSequenceClassification",
                                .positions = PositionKind::Rope,
                                .experts = true,
                                .latent = true,
                                .bias = true,
                                .buffers = {".rotary_emb.inv_freq"},
                                .further_layers = ".eh_proj.weight",
                                .check = check_deepseek_v3,
                                .read = read_deepseek_v3,
                                .write = write_deepseek_v3,
                                .spec = deepseek_v3_spec};

}  // namespace kintsugi
