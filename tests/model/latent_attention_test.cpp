// Multi-head latent attention: sizes, scales and caches. Values and gradients are those of the
// family's fixture and of central differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "model/block.h"
#include "model/positions.h"
#include "support/errors.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

Declaration declared(const ModelConfig& config, const LayerRanks& ranks) {
  Declaration declaration(ranks, 4096);
  const ModelSpec model = model_spec(config);
  Block(model, 0).declare(declaration);
  return declaration;
}

TEST(LatentAttention, CachesOnlyLatentsAndTheSharedKey) {
  for (const int tp : {1, 8}) {
    const Declaration layer = declared(load_preset("deepseek-v3"), {.tensor = tp});
    ASSERT_EQ(layer.caches().size(), 1u);
    EXPECT_EQ(layer.caches()[0].per_token, 512 + 64) << tp;
    EXPECT_EQ(layer.caches()[0].queries, 128 / tp) << "all heads read the same key";
  }
}

// What reads x has no shard of its own, and all ranks have parts of its gradient.
TEST(LatentAttention, ShardsWhatBelongsToHeads) {
  Declaration layer = declared(load_preset("deepseek-v3"), {.tensor = 8, .tensor_rank = 3});
  const std::string prefix = "model.layers.0.self_attn.";
  const auto parameter = [&](const std::string& name) -> const Parameter& {
    for (const Parameter& one : layer.parameters())
      if (one.name == prefix + name + ".weight") return one;
    failure("no parameter {}", name);
  };
  for (const char* const name :
       {"q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"}) {
    EXPECT_EQ(parameter(name).shape, parameter(name).global) << name;
    EXPECT_EQ(parameter(name).sum_over, (std::vector{GroupKind::Tp})) << name;
    EXPECT_FALSE(parameter(name).counted) << name;
  }
  EXPECT_EQ(parameter("q_b_proj").shape, (Shape{128 * 192 / 8, 1536}));
  EXPECT_EQ(parameter("kv_b_proj").shape, (Shape{128 * 256 / 8, 512}));
  EXPECT_EQ(parameter("o_proj").shape, (Shape{7168, 128 * 128 / 8}));
}

// Two numbers of FLOPs per key and element of queries and values.
TEST(LatentAttention, CountsScoresAndValues) {
  const LayerFlops flops = declared(load_preset("deepseek-v3"), {}).flops();
  EXPECT_EQ(flops.mixing_full, 2.0 * 128 * (192 + 128) * 4096);
  EXPECT_EQ(flops.mixing_causal, flops.mixing_full / 2);
}

// transformers: the factor of cosines and sines is a quotient; both magnitudes are 0.1 m ln f + 1.
TEST(LatentAttention, HasTheMagnitudesOfYarn) {
  RopeScaling scaling{.type = RopeScalingKind::Yarn, .factor = 40};
  const auto factor = [&] { return rope_table({.dim = 2, .scaling = scaling}, 1)[0]; };
  const double one = 0.1 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(factor(), one);
  scaling.mscale = scaling.mscale_all_dim = 1;
  EXPECT_DOUBLE_EQ(factor(), 1);
  scaling.mscale = 0.5;
  EXPECT_DOUBLE_EQ(factor(), (0.05 * std::log(40.0) + 1) / one);
  scaling.mscale_all_dim = 0;
  EXPECT_DOUBLE_EQ(factor(), one) << "only both together";
  EXPECT_NEAR(std::pow(192, -0.5) * std::pow(yarn_magnitude(scaling, 1), 2), 0.13523, 5e-6);
}

TEST(LatentAttention, OfWrongSizesIsRefused) {
  const auto error_of = [](const auto& change) {
    return user_error_of([&] {
      ModelConfig config = load_preset("deepseek-v3");
      change(config);
      config.complete_and_check();
    });
  };
  EXPECT_EQ(error_of([](ModelConfig& c) { c.latent.reset(); }),
            "family deepseek_v3 needs the sizes of its attention: latent: {rank: 512, …}");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.family = Family::Dots1; }),
            "latent is given, but family dots1 has no latent attention: remove it");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.latent->rotary_dim = 63, c.head_dim = 0; }),
            "latent.rotary_dim is 63: rotary positions need an even number");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.latent->rank = 0; }),
            "latent.rank is missing or 0: give a positive number");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.head_dim = 128; }),
            "head_dim is 128, but plain_dim and rotary_dim of latent add up to 192: remove it");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.kv_heads = 8; }),
            "kv_heads is 8, but latent attention has keys for each of 128 heads: remove it");
}

// The config.json of the fixture with a key changed.
ModelConfig with_key(const char* key, const nlohmann::json& value) {
  auto json = nlohmann::json::parse(
      read_text_file(std::filesystem::path(test_data_directory()) / "deepseek-v3" / "config.json"));
  json[key] = value;
  return parse_hf_config(json.dump(), "config.json");
}

TEST(LatentAttention, OfConfigJsonIsReadAndWritten) {
  EXPECT_EQ(with_key("q_lora_rank", nullptr).latent->query_rank, 0);
  const ModelConfig preset = load_preset("deepseek-v3");
  EXPECT_EQ(parse_hf_config(write_hf_config(preset, DType::BF16), "config.json"), preset);
  const auto error_of = [](const char* key, const nlohmann::json& value) {
    return user_error_of([&] { with_key(key, value); });
  };
  EXPECT_EQ(error_of("kv_lora_rank", nullptr), "config.json: key 'kv_lora_rank' is missing");
  EXPECT_EQ(error_of("rope_interleave", false),
            "config.json: rope_interleave is false, which is not supported (only true)");
  EXPECT_EQ(error_of("topk_method", "greedy"),
            "config.json: topk_method is 'greedy', which is not supported (only noaux_tc)");
  EXPECT_EQ(error_of("moe_layer_freq", 2),
            "config.json: moe_layer_freq is 2, which is not supported (only 1)");
  EXPECT_THAT(error_of("quantization_config", {{"quant_method", "fp8"}}),
              HasSubstr("quantised weights are not supported"));
}

}  // namespace
}  // namespace kintsugi
