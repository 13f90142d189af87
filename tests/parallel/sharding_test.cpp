// What all ranks of a run must agree on, besides the steps themselves.
#include "parallel/sharding.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

const std::vector<RankLayout>& sharding_layouts() {
  static const std::vector<RankLayout> all = {{4, 0},    {4, 1},    {3, 2},    {4, 3},
                                              {4, 1, 2}, {6, 2, 3}, {8, 3, 2}, {16, 3, 8}};
  return all;
}

Training training_of(const std::string& model, DType precision) {
  return {.model = tiny_model(model, 3), .precision = precision, .sequences = 48, .micro = 1};
}

// One rank has no target, others few: the loss is the mean over all counted tokens, not a mean of
// means.
TEST(ShardingTest, TokensCountAlikeOnAllRanks) {
  for (const char* model : {"gpt2", "llama-untied"}) {
    Training training = training_of(model, DType::F64);
    training.sequences = 96;
    training.masked = true;
    training.micro = 4;
    const Outcome expected = trained({}, training, 5);
    training.micro = 2;
    for (RankLayout layout : sharding_layouts())
      expect_same(trained(layout, training, 5), expected, to_string(layout));
    training.sequences = 16;  // one each: a rank without a loss
    training.micro = 1;
    expect_same(trained({16, 3}, training, 5), trained({}, training, 5), "one each");
  }
}

// Ranks add in the same order with every ZeRO stage, and stochastic rounding depends on the global
// element index. Only ZeRO 2 and 3 reduce every micro-batch, and only clipping needs a norm, whose
// terms are grouped differently.
TEST(ShardingTest, StagesAgreeToTheBit) {
  for (const bool accumulates : {false, true}) {
    Training training = training_of("llama-gqa", DType::BF16);
    training.sequences = 15;
    training.micro = accumulates ? 2 : 5;
    training.optimizer = {
        .clip = 0, .moments = DType::BF16, .stochastic_rounding = true, .seed = 21};
    const Outcome zero0 = trained({3, 0}, training, 6), zero3 = trained({3, 3}, training, 6);
    EXPECT_EQ(trained({3, 1}, training, 6).weights, zero0.weights);
    EXPECT_EQ(trained({3, 2}, training, 6).weights, zero3.weights);
    if (!accumulates) {
      EXPECT_EQ(zero3.weights, zero0.weights);
    }
  }
}

// Reductions in bf16 differ a little, identically on all ranks.
TEST(ShardingTest, SumsInBf16AreCloseAndNotTheSame) {
  for (const RankLayout& layout : sharding_layouts()) {
    Training training = training_of("qwen3", DType::F32);
    const Outcome wide = trained(layout, training, 6);
    training.reduce_in_bf16 = true;
    const Outcome narrow = trained(layout, training, 6);
    EXPECT_EQ(narrow.losses[0], wide.losses[0]) << "nothing has been summed yet";
    const double norm = difference(narrow.norms, wide.norms);
    EXPECT_GT(norm, 1e-6) << to_string(layout);
    EXPECT_LT(norm, 0x1p-7) << to_string(layout);
    const double loss = difference(narrow.losses, wide.losses);
    EXPECT_GT(loss, 0) << to_string(layout);
    EXPECT_LT(loss, 2e-3) << to_string(layout);
  }
}

// A single rank reduces nothing, so nothing is rounded.
TEST(ShardingTest, OneRankRoundsNoSums) {
  Training training = training_of("gpt2", DType::F32);
  const Outcome plain = trained({}, training, 3);
  training.reduce_in_bf16 = true;
  EXPECT_EQ(trained({}, training, 3).weights, plain.weights);
}

// An evaluation between steps uses the current weights and does not affect training.
TEST(ShardingTest, EvaluatesBetweenSteps) {
  for (const std::string& model : tiny_models()) {
    const Training training = training_of(model, DType::F64);
    const auto run = [&](const RankLayout& layout, Outcome& outcome) {
      std::vector<double> sums(3, 0.0);
      std::mutex mutex;
      on_ranks(layout, training, [&](const Member& member) {
        for (std::int64_t step = 1; step <= 3; ++step) {
          for (int again = 0; again < 2;
               ++again) {  // the second time with other buckets in the slots
            const double sum = member.evaluate(100 + step);
            const std::lock_guard lock(mutex);
            sums[static_cast<std::size_t>(step - 1)] += sum;
          }
          train(member, step, step, outcome);
        }
      });
      return sums;
    };
    Outcome expected;
    const std::vector<double> alone = run({}, expected);
    for (const RankLayout& layout : {RankLayout{2, 0}, RankLayout{2, 2}, RankLayout{4, 3, 2}}) {
      Outcome actual;
      EXPECT_LE(difference(run(layout, actual), alone), 1e-10)
          << model << ", " << to_string(layout);
      expect_same(actual, expected, model + ", " + to_string(layout));
    }
  }
}

// An overflow on one rank makes all ranks skip the step; the next step is not affected.
TEST(ShardingTest, AllRanksSkipAStepTogether) {
  Training training = training_of("llama-gqa", DType::F16);
  for (const RankLayout& layout : sharding_layouts()) {
    Outcome skipped, plain;
    on_ranks(layout, training, [&](const Member& member) {
      train(member, 1, 1, plain);
      EXPECT_FALSE(std::isfinite(member.step(2, 0x1p60).gradient_norm)) << to_string(layout);
      member.engine.sharding().finish_weights();
      train(member, 3, 3, skipped);
    });
    on_ranks(layout, training, [&](const Member& member) {
      train(member, 1, 1, plain);
      train(member, 3, 3, plain);
    });
    EXPECT_EQ(skipped.weights, plain.weights) << to_string(layout);
    EXPECT_EQ(skipped.losses.back(), plain.losses.back());
  }
}

// The owned ranges of a shard group are contiguous and do not overlap.
TEST(ShardingTest, EveryElementHasOneOwner) {
  for (const RankLayout& layout : {RankLayout{7, 1}, RankLayout{16, 3}, RankLayout{12, 2, 4}}) {
    const Training training{.model = tiny_model("gpt2", 2), .sequences = layout.dp};
    const ParameterSet set(training.model);
    std::vector<std::atomic<int>> owners(static_cast<std::size_t>(set.buffer_elements()));
    on_ranks(layout, training, [&](const Member& member) {
      for (int bucket = 0; bucket < static_cast<int>(set.buckets().size()); ++bucket) {
        const auto [begin, end] = member.engine.sharding().owned(bucket);
        for (std::int64_t i = begin; i < end; ++i) ++owners[static_cast<std::size_t>(i)];
      }
    });
    for (const auto& count : owners) ASSERT_EQ(count, layout.replicas()) << to_string(layout);
  }
}

// The destructor waits for gathers into memory that it frees.
TEST(ShardingTest, EndsDuringAGather) {
  for (const int zero : {1, 2, 3})
    on_ranks({3, zero}, training_of("gpt2", DType::F32), [](const Member& m) { m.step(1); });
}

}  // namespace
}  // namespace kintsugi
