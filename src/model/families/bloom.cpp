#include "model/families/gpt2_like.h"

// GPT-2's layers with ALiBi, a norm after the embedding, and q, k and v ordered by head.

namespace kintsugi {
namespace {

void check_bloom(ModelConfig& config) {
  check_gpt2_like(config);
  if (config.ffn_size != 4 * config.hidden_size)
    user_error("ffn_size is {} but family bloom always has 4 x hidden_size ({}): remove ffn_size",
               config.ffn_size, 4 * config.hidden_size);
}

void read_bloom(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("apply_residual_connection_post_layernorm", false);
  config.vocab_size = root.integer({"vocab_size"});
  config.hidden_size = root.integer({"hidden_size", "n_embed"});
  config.layers = root.integer({"n_layer", "num_hidden_layers"});
  config.heads = root.integer({"n_head", "num_attention_heads"});
  config.ffn_size = root.integer({"n_inner"}, 0);
  config.max_positions = root.integer({"seq_length"}, 2048);  // ALiBi has no limit of its own
  config.norm_eps = root.real({"layer_norm_epsilon"}, 1e-5);
  config.tied = root.flag("tie_word_embeddings", true);
}

void write_bloom(const ModelConfig& config, nlohmann::ordered_json& root) {
  root["vocab_size"] = config.vocab_size;
  root["hidden_size"] = config.hidden_size;
  root["n_layer"] = config.layers;
  root["n_head"] = config.heads;
  root["seq_length"] = config.max_positions;
  root["layer_norm_epsilon"] = config.norm_eps;
  root["initializer_range"] = config.init_std;
  root["apply_residual_connection_post_layernorm"] = false;
  root["hidden_dropout"] = 0.0;
  root["attention_dropout"] = 0.0;
  root["pretraining_tp"] = 1;
  root["slow_but_exact"] = false;
  root["use_cache"] = true;
  root["pad_token_id"] = nullptr;
  root["bos_token_id"] = token_or_null(config.bos_token);
  root["eos_token_id"] = token_or_null(config.eos_token);
  root["tie_word_embeddings"] = config.tied;
}

ModelSpec bloom_spec(const ModelConfig& config) {
  constexpr Gpt2Names names = {"self_attention.query_key_value",
                               "self_attention.dense",
                               "mlp.dense_h_to_4h",
                               "mlp.dense_4h_to_h",
                               "input_layernorm",
                               "post_attention_layernorm"};
  ModelSpec model = gpt2_frame(config, "transformer.word_embeddings.weight");
  model.embedding.norm = gpt2_norm(config, "transformer.word_embeddings_layernorm");
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = gpt2_attention(config, names, layer, false);
    attention.qkv_per_head = true;
    attention.qkv.matrices = 3;
    attention.qkv.turn = config.head_dim;
    attention.alibi = true;
    model.layers.push_back(gpt2_layer(config, names, layer, std::move(attention), false));
  }
  return model;
}

}  // namespace

const FamilyInfo kBloom = {.family = Family::Bloom,
                           .model_type = "bloom",
                           .architecture = "BloomForCausalLM",
                           .classifier = "BloomForSequenceClassification",
                           .positions = PositionKind::Alibi,
                           .check = check_bloom,
                           .read = read_bloom,
                           .write = write_bloom,
                           .spec = bloom_spec};

}  // namespace kintsugi
