// A run that diverges ends as diverged, saves no bad checkpoint and removes no healthy one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "support/parallel_run.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class Divergence : public testing::Test {
 protected:
  // Trains until the run diverges and returns the message.
  std::string diverged(const std::string& settings, const std::vector<std::string>& overrides) {
    const auto backend = make_cpu_backend(2);
    Trainer trainer(
        *backend, parse_run_config(small_config(corpus_, run_, settings), "test.yaml", overrides));
    testing::internal::CaptureStdout();
    std::string message;
    try {
      trainer.run(ResumeMode::Auto);
      ADD_FAILURE() << "the run did not diverge";
    } catch (const Diverged& error) {
      message = error.what();
    }
    testing::internal::GetCapturedStdout();
    const json status = json::parse(read_text_file(run_ / "status.json"));
    EXPECT_EQ(status.at("state"), "diverged");
    EXPECT_EQ(status.value("message", ""), message);
    return message;
  }
  std::vector<json> metrics() const {
    std::ifstream file(run_ / "metrics.jsonl");
    std::vector<json> records;
    for (std::string line; std::getline(file, line);) records.push_back(json::parse(line));
    return records;
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  fs::path run_ = directory_ / "run";
};

TEST_F(Divergence, WeightsThatAreNotFiniteAreNeverPublished) {
  const std::string message =
      diverged("steps: 9, eval_every: 0, checkpoint_every: 1", {"optimizer.lr=1e300"});
  EXPECT_THAT(message, AllOf(HasSubstr("diverged at step 1: the weights are no longer finite"),
                             HasSubstr("no checkpoint was saved while it was healthy"),
                             HasSubstr("optimizer.lr")));
  EXPECT_TRUE(list_checkpoints(run_ / "checkpoints").empty());
  EXPECT_FALSE(fs::exists(run_ / "checkpoints/latest"));
}

// Without a save in between, the loss of the next step shows it.
TEST_F(Divergence, TheFirstStepThatNoticesEndsTheRun) {
  for (const char* precision : {"fp32", "bf16", "fp64"}) {
    fs::remove_all(run_);
    const std::string message = diverged(
        fmt::format("steps: 90, eval_every: 0, checkpoint_every: 0, precision: {}", precision),
        {"optimizer.lr=1e300"});
    EXPECT_THAT(message, HasSubstr("diverged at step 2: the weights are no longer finite"));
    EXPECT_EQ(metrics().size(), 2u);
  }
}

// Resumes from a healthy checkpoint with a learning rate that is too high for any loss scale.
TEST_F(Divergence, AnOverflowAtTheSmallestLossScaleEndsTheRunAndNamesTheCheckpoint) {
  run_training(small_config(corpus_, run_,
                            "steps: 4, eval_every: 0, checkpoint_every: 0, precision: fp16, "
                            "loss_scale: {initial: 64}"));
  const std::string message = diverged(
      "steps: 90, eval_every: 0, checkpoint_every: 0, precision: fp16, loss_scale: "
      "{initial: 64, hysteresis: 1}",
      {"optimizer.lr=3", "optimizer.schedule=constant"});
  EXPECT_THAT(message, HasSubstr("the gradients overflow with the loss scale at its minimum of 1"));
  EXPECT_THAT(message, HasSubstr("the newest healthy checkpoint is " +
                                 (run_ / "checkpoints/step-00000004").string()));
  EXPECT_EQ(fs::read_symlink(run_ / "checkpoints/latest"), "step-00000004");
}

// The scale doubles at each step until it overflows, and is never lowered again.
TEST_F(Divergence, SkippedStepsEndTheRunAndHealthyCheckpointsAreKept) {
  const std::string message = diverged(
      "steps: 200, eval_every: 0, checkpoint_every: 1, precision: fp16, max_skipped_steps: 7, "
      "loss_scale: {initial: 65536, growth_interval: 1, hysteresis: 1000}",
      {"train.keep_checkpoints=2"});
  std::int64_t good = 0;
  for (const json& record : metrics())
    if (!record.at("grad_norm").is_null()) good = record.at("step");
  ASSERT_GT(good, 2);
  EXPECT_THAT(message, AllOf(HasSubstr("7 steps in a row"), HasSubstr("train.max_skipped_steps"),
                             HasSubstr(checkpoint_name(good) + ": ")));
  EXPECT_EQ(metrics().back().at("step"), good + 7);
  std::vector<std::string> names, expected;
  for (const CheckpointPaths& one : list_checkpoints(run_ / "checkpoints"))
    names.push_back(one.name);
  for (std::int64_t step = good - 1; step < good + 7; ++step)
    expected.push_back(checkpoint_name(step));
  EXPECT_EQ(names, expected);
}

// A restart does not reset the count.
TEST_F(Divergence, SkippedStepsAreCountedOverARestart) {
  const std::string settings =
      "eval_every: 0, checkpoint_every: 1, precision: fp16, max_skipped_steps: 4, "
      "loss_scale: {initial: 1e30, hysteresis: 1000}, steps: ";
  run_training(small_config(corpus_, run_, settings + "3"));
  EXPECT_THAT(diverged(settings + "9", {}), HasSubstr("diverged at step 4: 4 steps in a row"));
}

// NaN weights in one bucket on one rank: no rank saves.
TEST_F(Divergence, AllRanksAgreeThatWeightsAreNotFinite) {
  const RankLayout layout{3, 3};
  std::vector<std::string> messages(3);
  on_ranks(layout, {.model = tiny_model("gpt2", 2), .precision = DType::BF16, .sequences = 6},
           [&](const Member& member) {
             if (member.world.rank() == 1)
               member.engine.backend().fill(member.engine.sharding().owned_weights(1),
                                            std::numeric_limits<double>::quiet_NaN());
             try {
               save_checkpoint(run_, member.engine, TrainerState{}, {});
             } catch (const Diverged& error) {
               messages[static_cast<std::size_t>(member.world.rank())] = error.what();
             }
           });
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("not finite"));
  EXPECT_FALSE(fs::exists(run_));
}

}  // namespace
}  // namespace kintsugi
