#include "model/families/gpt2_like.h"

namespace kintsugi {
namespace {

void read_gpt2(const ConfigObject& root, ModelConfig& config) {
  root.require_text({"activation_function"}, {"gelu_new", "gelu_pytorch_tanh"});
  root.require_flag("scale_attn_weights", true);
  root.require_flag("scale_attn_by_inverse_layer_idx", false);
  root.require_flag("add_cross_attention", false);
  config.vocab_size = root.integer({"vocab_size"});
  config.hidden_size = root.integer({"n_embd", "hidden_size"});
  config.layers = root.integer({"n_layer", "num_hidden_layers"});
  config.heads = root.integer({"n_head", "num_attention_heads"});
  config.ffn_size = root.integer({"n_inner"}, 0);
  config.max_positions = root.integer({"n_positions", "max_position_embeddings"});
  config.norm_eps = root.real({"layer_norm_epsilon"}, 1e-5);
  config.tied = root.flag("tie_word_embeddings", true);
}

void write_gpt2(const ModelConfig& config, nlohmann::ordered_json& root) {
  root["vocab_size"] = config.vocab_size;
  root["n_embd"] = config.hidden_size;
  root["n_head"] = config.heads;
  root["n_layer"] = config.layers;
  root["n_positions"] = config.max_positions;
  root["n_inner"] = config.ffn_size == 4 * config.hidden_size
                        ? nlohmann::ordered_json()
                        : nlohmann::ordered_json(config.ffn_size);
  root["activation_function"] = "gelu_new";
  root["layer_norm_epsilon"] = config.norm_eps;
  for (const char* name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) root[name] = 0.0;
  root["scale_attn_weights"] = true;
  root["scale_attn_by_inverse_layer_idx"] = false;
  root["reorder_and_upcast_attn"] = false;
  root["initializer_range"] = config.init_std;
  root["use_cache"] = true;
  root["bos_token_id"] = token_or_null(config.bos_token);
  root["eos_token_id"] = token_or_null(config.eos_token);
  root["tie_word_embeddings"] = config.tied;
}

ModelSpec gpt2_spec(const ModelConfig& config) {
  constexpr Gpt2Names names = {"attn.c_attn", "attn.c_proj", "mlp.c_fc",
                               "mlp.c_proj",  "ln_1",        "ln_2"};
  ModelSpec model = gpt2_frame(config, "transformer.wte.weight");
  model.embedding.positions = "transformer.wpe.weight";
  model.embedding.max_positions = config.max_positions;
  for (int layer = 0; layer < config.layers; ++layer) {
    AttentionSpec attention = gpt2_attention(config, names, layer, true);
    attention.qkv.parts = attention.qkv.matrices = 3;
    model.layers.push_back(gpt2_layer(config, names, layer, std::move(attention), true));
  }
  return model;
}

}  // namespace

const FamilyInfo kGpt2 = {.family = Family::Gpt2,
                          .model_type = "gpt2",
                          .architecture = "GPT2LMHeadModel",
                          .classifier = "GPT2ForSequenceClassification",
                          .positions = PositionKind::Learned,
                          .buffers = {".attn.bias", ".attn.masked_bias"},
                          .check = check_gpt2_like,
                          .read = read_gpt2,
                          .write = write_gpt2,
                          .spec = gpt2_spec};

}  // namespace kintsugi
