#include "model/families/llama_like.h"

namespace kintsugi {
namespace {

void read_llama(const ConfigObject& root, ModelConfig& config) {
  root.require_flag("attention_bias", false);
  root.require_all("layer_types", "full_attention");
  read_llama_like(root, config, {});
}

void write_llama(const ModelConfig& config, nlohmann::ordered_json& root) {
  write_llama_like(config, root);
  root["pretraining_tp"] = 1;
  root["mlp_bias"] = false;
  root["attention_bias"] = false;
  write_rotation(config, root);
}

ModelSpec llama_spec(const ModelConfig& config) {
  ModelSpec model = llama_frame(config);
  for (int layer = 0; layer < config.layers; ++layer)
    model.layers.push_back(llama_layer(config, layer, llama_attention(config, layer)));
  return model;
}

}  // namespace

const FamilyInfo kLlama = {.family = Family::Llama,
                           .model_type = "llama",
                           .architecture = "LlamaForCausalLM",
                           .classifier = "LlamaForSequenceClassification",
                           .positions = PositionKind::Rope,
                           .buffers = {".rotary_emb.inv_freq"},
                           .check = nullptr,
                           .read = read_llama,
                           .write = write_llama,
                           .spec = llama_spec};

}  // namespace kintsugi
