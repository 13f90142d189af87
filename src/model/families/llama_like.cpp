#include "model/families/llama_like.h"

#include <cmath>

namespace kintsugi {
namespace {

void read_yarn(const ConfigObject& rope, ModelConfig& config) {
  rope.require_flag("truncate", true);  // it changes the rounding, which would be another model
  config.rope_scaling = RopeScaling{
      .type = RopeScalingKind::Yarn,
      .factor = rope.real({"factor"}),
      .original_max_positions =
          rope.integer({"original_max_position_embeddings"}, config.max_positions),
      .beta_fast = rope.real({"beta_fast"}, 32.0),
      .beta_slow = rope.real({"beta_slow"}, 1.0),
      .attention_factor = rope.real({"attention_factor"}, 0.0),
      .mscale = rope.real({"mscale"}, 0.0),
      .mscale_all_dim = rope.real({"mscale_all_dim"}, 0.0),
  };
}

// With layer_types, version 5 has rope_parameters per type; sliding layers must have the default
// type.
ConfigObject rope_parameters(const ConfigObject& root) {
  const ConfigObject all = root.object("rope_parameters");
  if (!all.has("full_attention")) return all;
  const ConfigObject full = all.object("full_attention"), sliding = all.object("sliding_attention");
  sliding.require_text({"rope_type", "type"}, {"default"});
  if (sliding.has("rope_theta") && sliding.real({"rope_theta"}) != full.real({"rope_theta"}))
    root.refuse("rope_parameters has different rope_theta for full and sliding attention");
  return full;
}

// Version 4 has rope_theta and rope_scaling, version 5 has both inside rope_parameters.
void read_rotation(const ConfigObject& root, ModelConfig& config, double rotated) {
  const ConfigObject old_form = root.object("rope_scaling");
  const ConfigObject new_form = rope_parameters(root);
  const bool old_given = root.has("rope_scaling");
  const ConfigObject& rope = old_given ? old_form : new_form;
  config.rope_theta = new_form.real(
      {"rope_theta"}, old_form.real({"rope_theta"}, root.real({"rope_theta"}, 10000.0)));
  for (const ConfigObject* object : {&root, &rope})
    if (const double part = object->real({"partial_rotary_factor"}, rotated); part != rotated)
      root.refuse("partial_rotary_factor is {}, which is not supported (only {})", part, rotated);

  rope.require_text({"rope_type", "type"}, {"default", "llama3", "yarn"});
  const std::string type = rope.text({"rope_type", "type"}, "default");
  if (type == "default") return;
  if (type == "yarn") return read_yarn(rope, config);
  config.rope_scaling = RopeScaling{
      .factor = rope.real({"factor"}),
      .low_freq_factor = rope.real({"low_freq_factor"}),
      .high_freq_factor = rope.real({"high_freq_factor"}),
      .original_max_positions = rope.integer({"original_max_position_embeddings"}),
  };
}

}  // namespace

void read_llama_like(const ConfigObject& root, ModelConfig& config, const LlamaDefaults& defaults) {
  root.require_text({"hidden_act"}, {"silu", "swish"});
  root.require_flag("mlp_bias", false);
  root.require_flag("use_sliding_window", false);
  config.vocab_size = root.integer({"vocab_size"});
  config.hidden_size = root.integer({"hidden_size"});
  config.layers = root.integer({"num_hidden_layers"});
  config.heads = root.integer({"num_attention_heads"});
  config.kv_heads = root.integer({"num_key_value_heads"}, 0);
  config.head_dim = root.integer({"head_dim"}, defaults.head_dim);
  config.ffn_size = root.integer({"intermediate_size"});
  config.max_positions = root.integer({"max_position_embeddings"}, defaults.max_positions);
  config.norm_eps = root.real({"rms_norm_eps"}, 1e-6);
  config.tied = root.flag("tie_word_embeddings", false);
  read_rotation(root, config, defaults.rotated);
}

void write_llama_like(const ModelConfig& config, nlohmann::ordered_json& root) {
  root["vocab_size"] = config.vocab_size;
  root["hidden_size"] = config.hidden_size;
  root["intermediate_size"] = config.ffn_size;
  root["num_hidden_layers"] = config.layers;
  root["num_attention_heads"] = config.heads;
  root["num_key_value_heads"] = config.kv_heads;
  root["head_dim"] = config.head_dim;
  root["hidden_act"] = "silu";
  root["max_position_embeddings"] = config.max_positions;
  root["initializer_range"] = config.init_std;
  root["rms_norm_eps"] = config.norm_eps;
  root["use_cache"] = true;
  root["pad_token_id"] = nullptr;
  root["bos_token_id"] = token_or_null(config.bos_token);
  root["eos_token_id"] = token_or_null(config.eos_token);
  root["tie_word_embeddings"] = config.tied;
  root["attention_dropout"] = 0.0;
}

void write_rotation(const ModelConfig& config, nlohmann::ordered_json& root) {
  root["rope_theta"] = config.rope_theta;
  root["rope_scaling"] = nullptr;
  const auto& scaling = config.rope_scaling;
  if (!scaling) return;
  if (scaling->type == RopeScalingKind::Yarn) {
    root["rope_scaling"] = {{"rope_type", "yarn"},
                            {"factor", scaling->factor},
                            {"original_max_position_embeddings", scaling->original_max_positions},
                            {"beta_fast", scaling->beta_fast},
                            {"beta_slow", scaling->beta_slow}};
    const auto write = [&](const char* key, double value) {
      if (value > 0) root["rope_scaling"][key] = value;
    };
    write("attention_factor", scaling->attention_factor);
    write("mscale", scaling->mscale);
    write("mscale_all_dim", scaling->mscale_all_dim);
  } else {
    root["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling->factor},
                            {"low_freq_factor", scaling->low_freq_factor},
                            {"high_freq_factor", scaling->high_freq_factor},
                            {"original_max_position_embeddings", scaling->original_max_positions}};
  }
}

Init residual_init(const ModelConfig& config) {
  return {InitKind::Normal, config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers))};
}

NormSpec llama_norm(const ModelConfig& config, const std::string& name) {
  return {.kind = NormKind::Rms, .eps = config.norm_eps, .name = name};
}

RopeSpec llama_rope(const ModelConfig& config) {
  return {.dim = config.head_dim, .theta = config.rope_theta, .scaling = config.rope_scaling};
}

ModelSpec llama_frame(const ModelConfig& config) {
  const Init init{InitKind::Normal, config.init_std};
  const std::string table = "model.embed_tokens.weight";
  return {.hidden_size = config.hidden_size,
          .tied = config.tied,
          .embedding = {.table = table, .vocab_size = config.vocab_size, .init = init},
          .layers = {},
          .head = {.norm = llama_norm(config, "model.norm"),
                   .table = config.tied ? table : "lm_head.weight",
                   .vocab_size = config.vocab_size,
                   .init = init}};
}

AttentionSpec llama_attention(const ModelConfig& config, int layer) {
  const std::string prefix = llama_prefix(layer) + "self_attn.";
  const std::int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .qkv = {.weights = {prefix + "q_proj.weight", prefix + "k_proj.weight",
                              prefix + "v_proj.weight"},
                  .outputs = {q, kv, kv},
                  .inputs = config.hidden_size,
                  .init = {{InitKind::Normal, config.init_std}}},
          .out = {.weights = {prefix + "o_proj.weight"},
                  .outputs = {config.hidden_size},
                  .inputs = q,
                  .init = {residual_init(config)}},
          .rope = llama_rope(config)};
}

MlpSpec llama_mlp(const ModelConfig& config, int layer) {
  return llama_mlp(config, llama_prefix(layer) + "mlp.", config.ffn_size);
}

MlpSpec llama_mlp(const ModelConfig& config, const std::string& prefix, std::int64_t size) {
  return {.size = size,
          .activation = ActivationKind::Swiglu,
          .up = {.weights = {prefix + "gate_proj.weight", prefix + "up_proj.weight"},
                 .outputs = {size, size},
                 .inputs = config.hidden_size,
                 .init = {{InitKind::Normal, config.init_std}}},
          .down = {.weights = {prefix + "down_proj.weight"},
                   .outputs = {config.hidden_size},
                   .inputs = size,
                   .init = {residual_init(config)}}};
}

void add_qk_norms(AttentionSpec& attention, const ModelConfig& config, int layer, QkNorm kind) {
  const std::string prefix = llama_prefix(layer) + "self_attn.";
  attention.qk_norm = kind;
  attention.q_norm = llama_norm(config, prefix + "q_norm");
  attention.k_norm = llama_norm(config, prefix + "k_norm");
}

LayerSpec llama_layer(const ModelConfig& config, int layer, AttentionSpec attention) {
  return llama_layer(config, layer, std::move(attention), llama_mlp(config, layer));
}

LayerSpec llama_layer(const ModelConfig& config, int layer, SublayerSpec attention,
                      SublayerSpec feed_forward) {
  const std::string prefix = llama_prefix(layer);
  return {
      {{.before = llama_norm(config, prefix + "input_layernorm"), .sublayer = std::move(attention)},
       {.before = llama_norm(config, prefix + "post_attention_layernorm"),
        .sublayer = std::move(feed_forward)}}};
}

}  // namespace kintsugi
