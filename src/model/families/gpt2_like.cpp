#include "model/families/gpt2_like.h"

#include "model/families/llama_like.h"

namespace kintsugi {
namespace {

std::string name_of(int layer, const char* word) {
  return fmt::format("transformer.h.{}.{}", layer, word);
}

LinearSpec linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, bool in_out,
                  const Init& init) {
  return {.weights = {name + ".weight"},
          .biases = {name + ".bias"},
          .outputs = {outputs},
          .inputs = inputs,
          .in_out = in_out,
          .init = {init}};
}

}  // namespace

// GPT-2 and BLOOM store q, k and v as one matrix of three equal parts, so kv_heads must equal
// heads.
void check_gpt2_like(ModelConfig& config) {
  const std::string_view family = to_string(config.family);
  if (config.kv_heads != config.heads)
    user_error(
        "kv_heads is {} but family {} has as many key-value heads as heads ({}): remove kv_heads",
        config.kv_heads, family, config.heads);
  if (config.head_dim * config.heads != config.hidden_size)
    user_error("head_dim {} x heads {} is not hidden_size {}, as family {} needs: remove head_dim",
               config.head_dim, config.heads, config.hidden_size, family);
}

NormSpec gpt2_norm(const ModelConfig& config, const std::string& name) {
  return {.kind = NormKind::Layer, .eps = config.norm_eps, .name = name};
}

ModelSpec gpt2_frame(const ModelConfig& config, const std::string& table) {
  const Init init{InitKind::Normal, config.init_std};
  return {.hidden_size = config.hidden_size,
          .tied = config.tied,
          .embedding = {.table = table, .vocab_size = config.vocab_size, .init = init},
          .layers = {},
          .head = {.norm = gpt2_norm(config, "transformer.ln_f"),
                   .table = config.tied ? table : "lm_head.weight",
                   .vocab_size = config.vocab_size,
                   .init = init}};
}

AttentionSpec gpt2_attention(const ModelConfig& config, const Gpt2Names& names, int layer,
                             bool in_out) {
  const std::int64_t hidden = config.hidden_size;
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .qkv = linear(name_of(layer, names.qkv), config.qkv_rows(), hidden, in_out,
                        {InitKind::Normal, config.init_std}),
          .out = linear(name_of(layer, names.out), hidden, config.heads * config.head_dim, in_out,
                        residual_init(config))};
}

LayerSpec gpt2_layer(const ModelConfig& config, const Gpt2Names& names, int layer,
                     AttentionSpec attention, bool in_out) {
  const std::int64_t hidden = config.hidden_size;
  MlpSpec mlp{.size = config.ffn_size,
              .activation = ActivationKind::Gelu,
              .up = linear(name_of(layer, names.up), config.ffn_size, hidden, in_out,
                           {InitKind::Normal, config.init_std}),
              .down = linear(name_of(layer, names.down), hidden, config.ffn_size, in_out,
                             residual_init(config))};
  return {
      {{.before = gpt2_norm(config, name_of(layer, names.norm1)), .sublayer = std::move(attention)},
       {.before = gpt2_norm(config, name_of(layer, names.norm2)), .sublayer = std::move(mlp)}}};
}

}  // namespace kintsugi
