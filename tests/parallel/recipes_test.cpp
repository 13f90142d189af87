// The training recipes give the same result in every layout as on one process, in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

// Every kind of parallelism, alone and combined.
const std::vector<RankLayout>& recipe_layouts() {
  static const std::vector<RankLayout> layouts = {
      {.dp = 2},
      {.dp = 2, .zero = 1},
      {.dp = 2, .zero = 3},
      {.dp = 4, .zero = 2, .shard_group = 2},
      {.tp = 2},
      {.tp = 2, .sequence_parallel = true},
      {.cp = 2},
      {.pp = 2},
      {.dp = 2, .zero = 1, .tp = 2, .pp = 2},
      {.dp = 2, .zero = 3, .cp = 2},
      {.pp = 2, .schedule = PipelineKind::ZeroBubbleH1},
  };
  return layouts;
}

Training recipe_training(const std::string& model) {
  Training training{.model = tiny_model(model, 2)};
  training.sequences = 8;
  training.length = 8;
  training.masked = true;
  return training;
}

TEST(ZLossTest, EveryLayoutEqualsOneProcess) {
  for (const std::string model : {"llama-tied", "llama-untied"}) {
    Training training = recipe_training(model);
    training.z_loss = 0.1;
    const Outcome expected = trained({}, training, 3);
    Training without = training;
    without.z_loss = 0;
    EXPECT_GT(difference(expected.weights, trained({}, without, 3).weights), 1e-4);
    for (const RankLayout& layout : recipe_layouts())
      expect_same(trained(layout, training, 3), expected, to_string(layout));
  }
}

// Logits of a model with tiny weights are 0: log Z is the log of the vocabulary, without rows of
// padding (23 rows on 4 ranks).
TEST(ZLossTest, IsTheMeanOverTheTargets) {
  Training training = recipe_training("llama-tied");
  training.model.init_std = 1e-12;
  training.z_loss = 0.1;
  training.lr = 0;
  const double log_z = std::log(23.0);
  for (const RankLayout& layout : {RankLayout{}, RankLayout{.tp = 4}, RankLayout{.dp = 2}})
    EXPECT_NEAR(trained(layout, training, 1).scalars.at(0), 0.1 * log_z * log_z, 1e-9)
        << to_string(layout);
}

// The loss scale of fp16 scales the z-loss too.
TEST(ZLossTest, IsIndependentOfTheLossScale) {
  Training training = recipe_training("llama-tied");
  training.z_loss = 0.1;
  StepResult plain, scaled;
  on_ranks({}, training, [&](const Member& member) { plain = member.step(1); });
  on_ranks({}, training, [&](const Member& member) { scaled = member.step(1, 1024.0); });
  EXPECT_NEAR(scaled.gradient_norm, plain.gradient_norm, 1e-12);
  EXPECT_EQ(value_of(scaled.scalars, "z_loss"), value_of(plain.scalars, "z_loss"));
}

// The tied table is on the first and the last stage, which must agree.
TEST(DecayEmbeddingsTest, EveryLayoutEqualsOneProcess) {
  for (const std::string model : {"gpt2", "llama-tied", "llama-untied"}) {
    Training training = recipe_training(model);
    training.optimizer.weight_decay = 5;
    const Outcome with_decay = trained({}, training, 3);
    training.optimizer.decay_embeddings = false;
    const Outcome expected = trained({}, training, 3);
    EXPECT_GT(difference(expected.weights, with_decay.weights), 1e-4);
    for (const RankLayout& layout : recipe_layouts())
      expect_same(trained(layout, training, 3), expected, model + ": " + to_string(layout));
  }
}

// Step 2 is skipped for its loss, for its norm, or not at all: 1e-6 above or below its values.
TEST(SkipStepTest, EveryLayoutEqualsOneProcess) {
  const Training plain = recipe_training("llama-tied");
  const Outcome all = trained({}, plain, 3);
  const double no_limit = std::numeric_limits<double>::infinity();
  const std::vector<StepLimits> tried = {
      {.loss = all.losses[1] - 1e-6, .gradient_norm = no_limit},
      {.loss = no_limit, .gradient_norm = all.norms[1] - 1e-6},
      {.loss = all.losses[1] + 1e-6, .gradient_norm = all.norms[1] + 1e-6}};
  for (const StepLimits& limits : tried) {
    Training training = plain;
    training.limited_step = 2;
    training.limits = limits;
    const bool skips = limits.loss < all.losses[1] || limits.gradient_norm < all.norms[1];
    const Outcome expected = trained({}, training, 3);
    EXPECT_EQ(expected.outliers, (std::vector<bool>{false, skips, false}));
    EXPECT_EQ(expected.losses[2] == all.losses[2], !skips);
    for (const RankLayout& layout : recipe_layouts()) {
      const Outcome actual = trained(layout, training, 3);
      expect_same(actual, expected, to_string(layout));
      EXPECT_EQ(actual.outliers, expected.outliers) << to_string(layout);
    }
  }
}

// Weights, moments and their offloaded copies are bitwise unchanged.
TEST(SkipStepTest, ASkippedStepChangesNothing) {
  for (const StateOffload& offload :
       {StateOffload{}, StateOffload{.on = true, .update = UpdateLocation::Device},
        StateOffload{.on = true, .update = UpdateLocation::Host},
        StateOffload{.on = true, .gradients = true, .update = UpdateLocation::Device}})
    for (const auto& [precision, kind] :
         {std::pair{DType::F64, OptimizerKind::AdamW}, std::pair{DType::BF16, OptimizerKind::AdamW},
          std::pair{DType::F64, OptimizerKind::Muon},
          std::pair{DType::BF16, OptimizerKind::Muon}}) {
      Training training = recipe_training("llama-tied");
      training.offload = offload;
      training.precision = precision;
      training.optimizer.kind = kind;
      training.limited_step = 2;
      training.limits.loss = 0.1;
      const Outcome one = trained({}, training, 1), two = trained({}, training, 2);
      EXPECT_EQ(two.outliers, (std::vector<bool>{false, true}));
      EXPECT_EQ(one.weights, two.weights);
      // The third step also depends on the moments: as if the second had never been.
      const auto weights_after = [&](std::vector<std::int64_t> steps) {
        Outcome outcome;
        on_ranks({}, training, [&](const Member& member) {
          for (const std::int64_t step : steps) member.step(step);
          train(member, 3, 3, outcome);
        });
        return outcome.weights;
      };
      EXPECT_EQ(weights_after({1, 2}), weights_after({1}));
    }
}

}  // namespace
}  // namespace kintsugi
