// Training with fp8 matmuls: layouts give the same bits where no scale spans ranks or
// micro-batches, and nearly the same run elsewhere.
#include "model/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/errors.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

using enum PipelineKind;

// Without clipping: the norm of the gradients, which is summed in another order if they are sharded
// differently, has no effect on the weights.
Training in_fp8(const std::string& kind, Fp8Recipe recipe = Fp8Recipe::Rowwise) {
  Training training{.model = tiny_fp8_model(kind, recipe),
                    .sequences = 4,
                    .micro = 1,
                    .length = 32,  // 16 tokens on each of two context ranks
                    .masked = true};
  training.optimizer.clip = 0;
  return training;
}

void expect_equal(const Outcome& actual, const Outcome& expected, const std::string& what,
                  double tolerance_of_norms = 1e-12) {
  EXPECT_EQ(actual.losses, expected.losses) << what;
  EXPECT_LT(difference(actual.norms, expected.norms), tolerance_of_norms) << what;
  EXPECT_TRUE(actual.weights == expected.weights) << what;
}

class Fp8Families : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, Fp8Families,
                         testing::Values("gpt2", "llama-gqa", "bloom", "qwen3", "olmo3", "retnet",
                                         "deepseek_v3", "mixtral"));

// ZeRO 3 quantizes its weights at every use, the others once per step. ZeRO 2 and 3 sum gradients
// of several micro-batches in another order.
TEST_P(Fp8Families, ShardingChangesNoBit) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Rowwise, Fp8Recipe::Tensorwise}) {
    Training training = in_fp8(GetParam(), recipe);
    const Outcome expected = trained({.dp = 2}, training, 3);
    expect_equal(trained({.dp = 2, .zero = 1}, training, 3), expected, "ZeRO 1");
    for (const int zero : {2, 3})
      expect_same(trained({.dp = 2, .zero = zero}, training, 3), expected,
                  "ZeRO " + std::to_string(zero));
    Training other = training;
    other.model.fp8.keep_weights = false;
    expect_equal(trained({.dp = 2}, other, 3), expected, "quantized at every use");
    training.micro = training.sequences / 2;
    const Outcome in_one = trained({.dp = 2}, training, 3);
    for (const int zero : {2, 3})
      expect_equal(trained({.dp = 2, .zero = zero}, training, 3), in_one,
                   "one micro-batch, ZeRO " + std::to_string(zero));
  }
}

// With ZeRO 0, fp8 weights come from the master weights, otherwise from a copy in bf16.
TEST_P(Fp8Families, UnroundedWeightsChangeNoBit) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Rowwise, Fp8Recipe::Tensorwise}) {
    Training training = in_fp8(GetParam(), recipe);
    training.precision = DType::BF16;
    const Outcome expected = trained({.dp = 2, .zero = 1}, training, 3);
    const auto expect_bits = [&](const Training& changed, const char* what) {
      expect_equal(trained({.dp = 2}, changed, 3), expected, what, 1e-6);
    };
    expect_bits(training, "unrounded");
    Training other = training;
    other.model.fp8.keep_weights = false;
    expect_bits(other, "unrounded, quantized at every use");
    other = training;
    other.offload.on = true;
    expect_bits(other, "offloaded");
  }
}

// The same with Muon, which updates whole matrices, and with a part of the matrices frozen.
TEST(Fp8Training, UnroundedWeightsOfOtherKinds) {
  Training training = in_fp8("llama-gqa");
  training.precision = DType::BF16;
  training.optimizer.kind = OptimizerKind::Muon;
  expect_equal(trained({.dp = 2}, training, 3), trained({.dp = 2, .zero = 1}, training, 3), "Muon",
               1e-6);
  training.optimizer.kind = OptimizerKind::AdamW;
  training.model.freeze = {"*.down_proj.*"};
  expect_equal(trained({.dp = 2}, training, 3), trained({.dp = 2, .zero = 1}, training, 3),
               "frozen", 1e-6);
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

// How far runs are apart: losses and norms.
struct Apart {
  double losses = 0, norms = 0;
};
Apart apart(const Outcome& a, const Outcome& b) {
  return {difference(a.losses, b.losses), difference(a.norms, b.norms)};
}

// A run in fp8 is near the same run without, but not the same. All experts are chosen: otherwise,
// rounding leads tokens to others, and the runs have nothing more to do with each other.
TEST_P(Fp8Families, IsNearTheRunWithoutIt) {
  constexpr int kSteps = 3;
  for (const Fp8Recipe recipe : {Fp8Recipe::Rowwise, Fp8Recipe::Tensorwise}) {
    Training training = in_fp8(GetParam(), recipe);
    if (auto& experts = training.model.experts)
      experts->chosen = experts->count, experts->top_groups = experts->groups;
    const Outcome in_8 = trained({}, training, kSteps);
    training.model.fp8 = {};
    const Apart effect = apart(in_8, trained({}, training, kSteps));
    EXPECT_GT(effect.losses, 1e-7);
    EXPECT_LT(effect.losses, 0.02);
    EXPECT_LT(effect.norms, 0.1);
  }
}

// Scales of rows that are sharded over tensor ranks, and of columns whose tokens are on other
// ranks, are local: what that changes is about as small as the effect of fp8 itself.
TEST_P(Fp8Families, OtherLayoutsAreNear) {
  Training training = in_fp8(GetParam());
  const Outcome alone = trained({}, training, 4);
  training.model.fp8 = {};
  const Apart effect = apart(alone, trained({}, training, 4));
  training.model.fp8 = tiny_fp8_model(GetParam()).fp8;
  std::vector<RankLayout> layouts = {{.tp = 2},
                                     {.tp = 2, .sequence_parallel = true},
                                     {.dp = 2, .zero = 3, .tp = 2, .pp = 2},
                                     {.dp = 4}};
  if (training.model.family != Family::Retnet) layouts.push_back({.cp = 2});
  for (const RankLayout& layout : layouts) {
    const Apart other = apart(trained(layout, training, 4), alone);
    EXPECT_LT(other.losses, 2 * effect.losses) << to_string(layout);
    EXPECT_LT(other.norms, 2 * effect.norms) << to_string(layout);
  }
}

TEST(Fp8Training, OptionsChangeTheRun) {
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

// Chunks of a pipeline whose layers differ do not share memory.
TEST(Fp8Training, LayersThatDifferInAPipeline) {
  Training training = in_fp8("llama-gqa");
  training.model.fp8.bf16_layers = {.first = 1};
  const Outcome expected = trained({.pp = 2}, training, 3);
  const RankLayout chunks{.pp = 2, .chunks = 2, .schedule = Interleaved};
  expect_equal(trained(chunks, training, 3), expected, "chunks");
  training.model.freeze = {"model.layers.1.*"};
  expect_equal(trained(chunks, training, 3), trained({.pp = 2}, training, 3), "frozen");
}

TEST(Fp8Training, FilterSelectsSites) {
  ModelConfig config = tiny_fp8_model("llama-gqa");
  config.fp8.filter = {"head", "mlp.down", "attention.qkv"};
  config.fp8.bf16_layers = {.first = 1, .last = 2};
  EXPECT_EQ(fp8_sites(model_spec(config)),
            (std::vector<std::string>{"layers.1.attention.out", "layers.1.mlp.up"}));
  check_fp8(config);
  config.fp8.filter = {"head", "retention.out"};
  EXPECT_EQ(user_error_of([&] { check_fp8(config); }),
            "train.fp8.filter has no site 'retention.out' (did you mean 'attention.out'?); the "
            "sites are head, attention.qkv, attention.out, mlp.up, mlp.down");
}

// A row of an expert, and an expert, are on one rank, so that no layout changes their scales.
TEST(Fp8Experts, TrainInEveryLayoutAsInOneProcess) {
  for (const char* const kind : {"mixtral", "deepseek_v3"}) {
    Training training = in_fp8(kind);
    training.model.fp8.filter = {"head",          "attention.qkv", "attention.up",
                                 "attention.out", "mlp.up",        "mlp.down"};
    training.micro = 2;
    const Outcome alone = trained({}, training, 3);
    for (const RankLayout& layout :
         {RankLayout{.tp = 2}, RankLayout{.tp = 2, .sequence_parallel = true}, RankLayout{.cp = 2},
          RankLayout{.cp = 2, .context = ContextMethod::Ulysses}, RankLayout{.dp = 2, .zero = 3},
          RankLayout{.pp = 2, .schedule = ZeroBubbleH1}, RankLayout{.dp = 2, .experts = 2},
          RankLayout{.dp = 2, .zero = 3, .experts = 2, .dispatch = Dispatch::AllToAll},
          RankLayout{.dp = 2, .zero = 1, .experts = 2, .tp = 2}})
      expect_same(trained(layout, training, 3), alone,
                  fmt::format("{}, {}", kind, to_string(layout)));
    Training other = training;
    other.recompute = Recompute::Full;
    expect_equal(trained({}, other, 3), alone, "recomputed");
    other = training;
    other.model.fp8.keep_weights = false;
    expect_equal(trained({}, other, 3), alone, "quantized at every use");
    other = training;
    other.micro = 1;
    expect_same(trained({}, other, 3), alone, "smaller micro-batches");
    other = training;
    other.model.fp8 = {};
    EXPECT_GT(difference(trained({}, other, 3).losses, alone.losses), 1e-7) << "not in fp8";
  }
}

// The fp8 weights take the place of those in bf16. Sequences whose length is no multiple of 16 are
// evaluated in bf16.
TEST(Fp8Training, UnroundedWeights) {
  Training training = in_fp8("llama-gqa");
  training.precision = DType::BF16;
  for (const bool keep : {true, false}) {
    training.model.fp8.keep_weights = keep;
    on_ranks({}, training, [&](const Member& member) {
      Engine& engine = member.engine;
      std::int64_t in_bf16 = 0, in_fp8 = 0;
      const ParameterSet& set = engine.parameters();
      for (const Parameter& parameter : set.parameters()) {
        EXPECT_EQ(engine.sharding().is_unrounded(parameter.bucket), parameter.fp8)
            << parameter.name;
        (parameter.fp8 ? in_fp8 : in_bf16) += parameter.shape.elements();
      }
      const auto bytes = static_cast<std::int64_t>(engine.arena().bytes(Region::Weights));
      EXPECT_NEAR(bytes, 2 * in_bf16 + (keep ? 2 * in_fp8 : 0), 0.1 * 2 * (in_bf16 + in_fp8));
      member.step(1);
      const auto losses = [&](std::int64_t length) {
        std::vector<std::int32_t> tokens;
        for (std::int32_t i = 0; i < length; ++i) tokens.push_back(i * 7 % 11);
        double sum = 0;
        engine.score({.ids = tokens, .targets = tokens, .length = length},
                     [&](std::size_t, double loss, double) { sum += loss; });
        return sum / static_cast<double>(length);
      };
      const double short_before = losses(24), whole = losses(32), short_after = losses(24);
      EXPECT_EQ(short_before, short_after);
      EXPECT_NEAR(whole, short_before, 0.3);
      EXPECT_TRUE(std::isfinite(member.step(2).gradient_norm));
    });
  }
}

// What is recomputed is not counted again.
TEST(Fp8Training, StatisticsDoNotDependOnRecomputation) {
  const auto counts = [](Recompute recompute) {
    Training training = in_fp8("llama-gqa");
    training.recompute = recompute;
    std::vector<float> numbers;
    on_ranks({}, training, [&](const Member& member) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(2 * training.length));
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<std::int32_t>(i * 7 % 11);
      member.engine.step({.ids = tokens, .targets = tokens}, {.lr = 1e-3, .fp8_statistics = true});
      numbers = member.engine.fp8_statistics();
    });
    return numbers;
  };
  const std::vector<float> expected = counts(Recompute::None);
  EXPECT_GT(*std::max_element(expected.begin(), expected.end()), 0);
  EXPECT_EQ(counts(Recompute::Selective), expected);
  EXPECT_EQ(counts(Recompute::Full), expected);
}

// Frozen weights in fp8: only adapters are trained.
TEST(Fp8Training, AdaptersOnFrozenWeights) {
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
TEST(Fp8Training, UnalignedMatmulsAreNotInFp8) {
  Training training = in_fp8("llama-gqa");
  training.model.ffn_size = 100;
  training.model.fp8.filter = {"head", "attention.qkv", "attention.out"};
  const Outcome in_8 = trained({}, training, 2);
  EXPECT_NE(fp8_summary(training.model, 1).find("not mlp.down, mlp.up"), std::string::npos)
      << fp8_summary(training.model, 1);
  training.model.fp8 = {};
  expect_equal(in_8, trained({}, training, 2), "no matmul is in fp8");
}

// One weight of an fp8 matmul that is not finite makes the gradient norm not finite: the step is
// skipped.
TEST(Fp8Training, NanReachesTheGradientNorm) {
  const Training training = in_fp8("llama-gqa");
  on_ranks({}, training, [](const Member& member) {
    EXPECT_TRUE(std::isfinite(member.step(1).gradient_norm));
    const ParameterSet& set = member.engine.parameters();
    const Tensor down =
        member.engine.sharding().store().weight(set.index("model.layers.1.mlp.down_proj.weight"));
    down.as<double>()[5] = INFINITY;
    EXPECT_FALSE(std::isfinite(member.step(2).gradient_norm));
  });
}

// Freezing some matrices of each layer changes no memory that the others use.
TEST(Fp8Training, FrozenMatrices) {
  Training training = in_fp8("llama-gqa");
  training.model.freeze = {"*.self_attn.*"};
  const Outcome alone = trained({.dp = 2}, training, 3);
  expect_equal(trained({.dp = 2, .zero = 1}, training, 3), alone, "ZeRO 1");
  training.recompute = Recompute::Full;
  expect_equal(trained({.dp = 2}, training, 3), alone, "recomputed");
  training.recompute = Recompute::None;
  training.model.freeze = {};
  EXPECT_NE(trained({.dp = 2}, training, 3).weights, alone.weights);
}

// Layers whose activations differ by a factor of a thousand: the scales of a layer are its own.
TEST(Fp8Training, LayersOfDifferentSizes) {
  const auto run = [](const RankLayout& layout, Recompute recompute) {
    Training training = in_fp8("llama-untied");
    training.recompute = recompute;
    Outcome outcome;
    on_ranks(layout, training, [&](const Member& member) {
      const ParameterSet& set = member.engine.parameters();
      const Tensor up =
          member.engine.sharding().store().weight(set.index("model.layers.0.mlp.up_proj.weight"));
      for (std::int64_t i = 0; i < up.elements(); ++i) up.as<double>()[i] *= 1000;
      train(member, 1, 2, outcome);
    });
    return outcome;
  };
  const RankLayout split{.tp = 2, .sequence_parallel = true};
  const Outcome expected = run({.tp = 2}, Recompute::None);
  expect_same(run(split, Recompute::None), expected, "sequence parallel");
  expect_same(run(split, Recompute::Selective), expected, "sequence parallel, recomputed");
}

}  // namespace
}  // namespace kintsugi
