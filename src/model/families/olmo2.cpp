#include "model/families/olmo_like.h"

// Llama with its norms behind attention and MLP, and norms of all of q and all of k.

namespace kintsugi {
namespace {

void read(const ConfigObject& root, ModelConfig& config) {
  root.require_all("layer_types", "full_attention");
  read_olmo_like(root, config);
}

ModelSpec spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer)
    model.layers.push_back(olmo_layer(config, layer, olmo_attention(config, layer)));
  return model;
}

}  // namespace

const FamilyInfo kOlmo2 = {.family = Family::Olmo2,
                           .model_type = "olmo2",
                           .architecture = "Olmo2ForCausalLM",
                           .positions = PositionKind::Rope,
                           .check = nullptr,
                           .read = read,
                           .write = write_olmo_like,
                           .spec = spec};

}  // namespace kintsugi
