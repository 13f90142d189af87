#include "model/model_layers.h"

#include <gtest/gtest.h>

namespace kintsugi {
namespace {

using Numbers = std::vector<int>;

TEST(ModelLayers, LayersThatDifferInNamesAreOneKind) {
  for (const char* preset : {"gpt2-124m", "llama-8b", "qwen3-8b", "bloom-560m", "retnet-tiny"}) {
    const ModelConfig config = load_preset(preset);
    const ModelLayers kinds(config);
    EXPECT_EQ(kinds.first, Numbers{0}) << preset;
    EXPECT_EQ(kinds.kinds, Numbers(static_cast<std::size_t>(config.layers), 0)) << preset;
  }
}

TEST(ModelLayers, WindowsAndFp8Differ) {
  ModelConfig config = load_preset("olmo3-tiny");
  config.layers = 6;
  config.layer_types = {LayerType::Sliding, LayerType::Full};
  EXPECT_EQ(ModelLayers(config).kinds, (Numbers{0, 1, 0, 1, 0, 1}));
  config.fp8 = {.recipe = Fp8Recipe::Rowwise, .bf16_layers = {.first = 1, .last = 0}};
  const ModelLayers kinds(config);
  EXPECT_EQ(kinds.kinds, (Numbers{0, 1, 2, 1, 2, 1}));
  EXPECT_EQ(kinds.first, (Numbers{0, 1, 2}));
}

// Layers below the first trained one have no backward; others may be frozen in part.
TEST(ModelLayers, WhatIsTrainedDiffers) {
  ModelConfig config = load_preset("llama-tiny");
  config.layers = 6;
  config.freeze = {"model.embed_tokens", "model.layers.0.*", "model.layers.1.*",
                   "model.layers.3.mlp.*", "model.layers.4.*"};
  EXPECT_EQ(ModelLayers(config).kinds, (Numbers{0, 0, 1, 2, 3, 1}));
}

TEST(ModelLayers, AdaptersDiffer) {
  ModelConfig config = load_preset("llama-tiny");
  config.layers = 3;
  config.lora.r = 4;
  EXPECT_EQ(ModelLayers(config).kinds, (Numbers{0, 0, 0}));
  config.lora.targets = {"model.layers.1.self_attn.q_proj"};
  const ModelLayers kinds(config);
  EXPECT_EQ(kinds.kinds, (Numbers{0, 1, 2}));
}

}  // namespace
}  // namespace kintsugi
