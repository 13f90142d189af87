#include "model/families/olmo_like.h"

// Llama with the norms after attention and MLP, and norms over all heads of q and of k.

namespace kintsugi {
namespace {

void read_olmo2(const ConfigObject& root, ModelConfig& config) {
  root.require_all("layer_types", "full_attention");
  read_olmo_like(root, config);
}

ModelSpec olmo2_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer)
    model.layers.push_back(olmo_layer(config, layer, olmo_attention(config, layer)));
  return model;
}

}  // namespace

const FamilyInfo kOlmo2 = {.family = Family::Olmo2,
                           .model_type = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .classifier = "Olmo2ForSequenceClassification",
                           .positions = PositionKind::Rope,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = nullptr,
                           .read = read_olmo2,
                           .write = write_olmo_like,
                           .spec = olmo2_spec};

}  // namespace kintsugi
