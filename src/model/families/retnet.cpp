#include <cmath>

#include "model/families/config_json.h"
#include "model/families/family.h"

// RetNet (arXiv 2307.08621) with torchscale's parameter names. transformers has no class for it:
// config.json uses its own model_type and torchscale's names of the sizes.

namespace kintsugi {
namespace {

void check_retnet(ModelConfig& config) {
  if (config.value_size == 0)
    user_error("value_size is missing: give the total width of the values of all heads");
  if (config.value_size % config.heads != 0)
    user_error("heads {} does not divide value_size {}", config.heads, config.value_size);
  if (config.kv_heads != config.heads || config.head_dim * config.heads != config.hidden_size)
    user_error(
        "kv_heads {} and head_dim {} do not fit family retnet, which has q and k of hidden_size "
        "{}: remove them",
        config.kv_heads, config.head_dim, config.hidden_size);
  if (config.head_dim % 2 != 0)
    user_error("hidden_size {} / heads {} is {}: rotations need an even number", config.hidden_size,
               config.heads, config.head_dim);
}

void read_retnet(const ConfigObject& root, ModelConfig& config) {
  root.require_text({"activation_fn"}, {"swish"});
  config.vocab_size = root.integer({"vocab_size"});
  config.hidden_size = root.integer({"decoder_embed_dim"});
  config.value_size = root.integer({"decoder_value_embed_dim"});
  config.ffn_size = root.integer({"decoder_ffn_embed_dim"});
  config.layers = root.integer({"decoder_layers"});
  config.heads = root.integer({"decoder_retention_heads"});
  config.max_positions = root.integer({"max_position_embeddings"}, 2048);
  config.norm_eps = root.real({"layernorm_eps"}, 1e-6);
  config.tied = root.flag("share_decoder_input_output_embed", false);
  root.require_flag("no_scale_embedding", true);
}

void write_retnet(const ModelConfig& config, nlohmann::ordered_json& root) {
  root["vocab_size"] = config.vocab_size;
  root["decoder_embed_dim"] = config.hidden_size;
  root["decoder_value_embed_dim"] = config.value_size;
  root["decoder_ffn_embed_dim"] = config.ffn_size;
  root["decoder_layers"] = config.layers;
  root["decoder_retention_heads"] = config.heads;
  root["max_position_embeddings"] = config.max_positions;
  root["activation_fn"] = "swish";
  root["layernorm_eps"] = config.norm_eps;
  root["no_scale_embedding"] = true;
  root["share_decoder_input_output_embed"] = config.tied;
  root["initializer_range"] = config.init_std;
  root["bos_token_id"] = token_or_null(config.bos_token);
  root["eos_token_id"] = token_or_null(config.eos_token);
}

// Xavier uniform initialization with a gain.
Init xavier(double gain, std::int64_t inputs, std::int64_t outputs) {
  return {InitKind::Uniform, gain * std::sqrt(6.0 / static_cast<double>(inputs + outputs))};
}

RetentionSpec retention(const ModelConfig& config, const std::string& prefix) {
  const std::int64_t hidden = config.hidden_size, values = config.value_size;
  const auto name = [&](const char* word) { return prefix + "retention." + word + "_proj.weight"; };
  const double gain = std::exp2(-2.5);
  const Init keys = xavier(gain, hidden, hidden), wide = xavier(gain, hidden, values);
  return {.heads = config.heads,
          .k_dim = hidden / config.heads,
          .v_dim = values / config.heads,
          .projection = {.weights = {name("q"), name("k"), name("v"), name("g")},
                         .outputs = {hidden, hidden, values, values},
                         .inputs = hidden,
                         .init = {keys, keys, wide, wide}},
          .out = {.weights = {name("out")},
                  .outputs = {hidden},
                  .inputs = values,
                  .init = {xavier(0.5, values, hidden)}},
          .rope = {.dim = config.head_dim, .theta = config.rope_theta, .adjacent = true},
          .norm_eps = config.norm_eps};
}

MlpSpec feed_forward(const ModelConfig& config, const std::string& prefix) {
  const std::int64_t hidden = config.hidden_size, size = config.ffn_size;
  const Init up = xavier(1, hidden, size), down = xavier(1, size, hidden);
  return {.size = size,
          .activation = ActivationKind::Swiglu,
          .up = {.weights = {prefix + "ffn.fc1.weight", prefix + "ffn.gate.weight"},
                 .outputs = {size, size},
                 .inputs = hidden,
                 .init = {up}},
          .down = {.weights = {prefix + "ffn.fc2.weight"},
                   .outputs = {hidden},
                   .inputs = size,
                   .init = {down}}};
}

ModelSpec retnet_spec(const ModelConfig& config) {
  const Init table{InitKind::Normal, 1 / std::sqrt(static_cast<double>(config.hidden_size))};
  const auto norm = [&](const std::string& name) {
    return NormSpec{.kind = NormKind::Rms, .eps = config.norm_eps, .name = name};
  };
  ModelSpec model{
      .hidden_size = config.hidden_size,
      .tied = config.tied,
      .embedding = {.table = "embed_tokens.weight", .vocab_size = config.vocab_size, .init = table},
      .layers = {},
      .head = {.norm = norm("layer_norm"),
               .table = config.tied ? "embed_tokens.weight" : "output_projection.weight",
               .vocab_size = config.vocab_size,
               .init = table}};
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    model.layers.push_back(
        {{{.before = norm(prefix + "retention_layer_norm"), .sublayer = retention(config, prefix)},
          {.before = norm(prefix + "final_layer_norm"),
           .sublayer = feed_forward(config, prefix)}}});
  }
  return model;
}

}  // namespace

const FamilyInfo kRetnet = {.family = Family::Retnet,
                            .model_type = "retnet",
                            .architecture = "RetNetForCausalLM",
                            .classifier = nullptr,
                            .positions = PositionKind::Retention,
                            .values = true,
                            .document_masks = false,
                            .buffers = {"retnet_rel_pos.angle", "retnet_rel_pos.decay"},
                            .check = check_retnet,
                            .read = read_retnet,
                            .write = write_retnet,
                            .spec = retnet_spec};

}  // namespace kintsugi
