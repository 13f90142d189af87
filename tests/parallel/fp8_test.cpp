// Training with fp8 matmuls: layouts give the same bits where no scale spans ranks or
// micro-batches, and nearly the same run elsewhere.
#include "model/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

using enum PipelineKind;

// Sizes of fp8 matmuls are multiples of 16 on 1 and 2 tensor ranks.
ModelConfig fp8_model(const std::string& kind, Fp8Recipe recipe = Fp8Recipe::Rowwise) {
  ModelConfig config = tiny_model(kind, 4);
  config.hidden_size = 64;
  config.head_dim = 0;
  config.ffn_size = config.family == Family::Bloom ? 0 : 96;
  if (kind == "retnet") config.value_size = 128;
  config.fp8.recipe = recipe;
  config.complete_and_check();
  return config;
}

Training in_fp8(const std::string& kind, Fp8Recipe recipe = Fp8Recipe::Rowwise) {
  return {
      .model = fp8_model(kind, recipe), .sequences = 8, .micro = 2, .length = 16, .masked = true};
}

void expect_equal(const Outcome& actual, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(actual.losses, expected.losses) << what;
  EXPECT_EQ(actual.norms, expected.norms) << what;
  EXPECT_TRUE(actual.weights == expected.weights) << what;
}

class Fp8Families : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, Fp8Families,
                         testing::Values("gpt2", "llama-gqa", "bloom", "qwen3", "olmo3", "retnet"));

// ZeRO 3 quantizes its weights at every use, the others once per step.
TEST_P(Fp8Families, ShardingChangesNoBit) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Rowwise, Fp8Recipe::Tensorwise}) {
    const Training training = in_fp8(GetParam(), recipe);
    const Outcome expected = trained({.dp = 2}, training, 3);
    for (const int zero : {1, 2, 3})
      expect_equal(trained({.dp = 2, .zero = zero}, training, 3), expected,
                   "ZeRO " + std::to_string(zero));
    Training other = training;
    other.model.fp8.keep_weights = false;
    expect_equal(trained({.dp = 2}, other, 3), expected, "quantized at every use");
  }
}

TEST_P(Fp8Families, SchedulesAndRecomputeChangeNoBit) {
  Training training = in_fp8(GetParam());
  const Outcome expected = trained({.pp = 2}, training, 3);
  for (const RankLayout& layout :
       {RankLayout{.pp = 2, .schedule = GPipe}, RankLayout{.pp = 2, .schedule = ZeroBubbleH1},
        RankLayout{.pp = 2, .chunks = 2, .schedule = Interleaved}})
    expect_equal(trained(layout, training, 3), expected, to_string(layout));
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    training.recompute = recompute;
    expect_equal(trained({.pp = 2}, training, 3), expected, std::string(to_string(recompute)));
  }
}

// The losses of a run in fp8 are near those of the same run without, but not the same.
TEST_P(Fp8Families, IsNearTheRunWithoutIt) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Rowwise, Fp8Recipe::Tensorwise}) {
    Training training = in_fp8(GetParam(), recipe);
    const Outcome in_8 = trained({}, training, 6);
    training.model.fp8 = {};
    const Outcome without = trained({}, training, 6);
    const double apart = difference(in_8.losses, without.losses);
    EXPECT_GT(apart, 1e-7);
    EXPECT_LT(apart, 0.02);
    EXPECT_LT(difference(in_8.norms, without.norms), 0.15);
  }
}

// Scales of rows that are sharded over tensor ranks, and of columns whose tokens are on other
// ranks, are local. They are powers of two: only numbers that underflow differ.
TEST_P(Fp8Families, OtherLayoutsAreNear) {
  const Training training = in_fp8(GetParam());
  const Outcome alone = trained({}, training, 4);
  std::vector<RankLayout> layouts = {{.tp = 2},
                                     {.tp = 2, .sequence_parallel = true},
                                     {.dp = 2, .zero = 3, .tp = 2, .pp = 2},
                                     {.dp = 4}};
  if (training.model.family != Family::Retnet) layouts.push_back({.cp = 2});
  for (const RankLayout& layout : layouts) {
    const Outcome actual = trained(layout, training, 4);
    EXPECT_LT(difference(actual.losses, alone.losses), 5e-3) << to_string(layout);
    EXPECT_LT(difference(actual.norms, alone.norms), 5e-2) << to_string(layout);
  }
}

TEST(Fp8Test, OptionsChangeTheRun) {
  const Training training = in_fp8("llama-gqa");
  const Outcome expected = trained({}, training, 2);
  const auto differs = [&](const char* what, const auto& change) {
    Training other = training;
    change(other.model.fp8);
    const Outcome actual = trained({}, other, 2);
    EXPECT_GT(difference(actual.weights, expected.weights), 1e-9) << what;
    EXPECT_LT(difference(actual.losses, expected.losses), 0.02) << what;
  };
  differs("wgrad", [](Fp8Config& c) { c.wgrad = false; });
  differs("filter", [](Fp8Config& c) { c.filter.push_back("mlp.down"); });
  differs("power_of_two_scales", [](Fp8Config& c) { c.power_of_two_scales = false; });
  differs("bf16_layers", [](Fp8Config& c) { c.bf16_layers = {.first = 1, .last = 1}; });
}

TEST(Fp8Test, FilterSelectsSites) {
  ModelConfig config = fp8_model("llama-gqa");
  config.fp8.filter = {"head", "mlp.down", "attention.qkv"};
  config.fp8.bf16_layers = {.first = 1, .last = 2};
  EXPECT_EQ(fp8_sites(model_spec(config)),
            (std::vector<std::string>{"layers.1.attention.out", "layers.1.mlp.up"}));
}

// Frozen weights in fp8: only adapters are trained.
TEST(Fp8Test, AdaptersOnFrozenWeights) {
  Training training = in_fp8("llama-gqa");
  training.model.lora = {.r = 4, .alpha = 8, .targets = {"all-linear"}};
  const Outcome alone = trained({.dp = 2}, training, 3);
  EXPECT_NE(alone.losses.front(), alone.losses.back());
  for (const int zero : {1, 3})
    expect_same(trained({.dp = 2, .zero = zero}, training, 3), alone, "ZeRO");
  training.recompute = Recompute::Full;
  expect_same(trained({.dp = 2}, training, 3), alone, "recomputed");
}

// A matmul whose sizes are no multiples of 16 stays in the precision of the run.
TEST(Fp8Test, UnalignedMatmulsAreNotInFp8) {
  Training training = in_fp8("llama-gqa");
  training.model.ffn_size = 100;
  training.model.fp8.filter = {"head", "attention.qkv", "attention.out"};
  const Outcome in_8 = trained({}, training, 2);
  EXPECT_NE(fp8_summary(training.model, 1).find("not mlp.down, mlp.up"), std::string::npos)
      << fp8_summary(training.model, 1);
  training.model.fp8 = {};
  expect_equal(in_8, trained({}, training, 2), "no matmul is in fp8");
}

// Weights that are not finite make the gradient norm not finite: the step is skipped.
TEST(Fp8Test, NanReachesTheGradientNorm) {
  Training training = in_fp8("llama-gqa");
  training.lr = 1e38;
  training.precision = DType::F32;
  on_ranks({}, training, [](const Member& member) {
    EXPECT_TRUE(std::isfinite(member.step(1).gradient_norm));
    EXPECT_FALSE(std::isfinite(member.step(2).gradient_norm));
  });
}

}  // namespace
}  // namespace kintsugi
