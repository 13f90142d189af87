// run.from: a run that continues a checkpoint of another run, with its own data and schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "data/sampling/batch_loader.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "train/engine_options.h"
#include "train/run_history.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class RunFrom : public testing::Test {
 protected:
  std::string text(const fs::path& run, int steps) const {
    return small_config(
        corpus_, run,
        "eval_every: 0, checkpoint_every: 3, dropout: 0.1, steps: " + std::to_string(steps));
  }
  std::string trained(const fs::path& run, int steps, std::vector<std::string> overrides = {}) {
    const auto backend = make_cpu_backend(2);
    Trainer trainer(*backend, parse_run_config(text(run, steps), "test.yaml", overrides));
    const CapturedLog log;
    trainer.run(ResumeMode::Auto);
    return log.text();
  }
  // A branch of the checkpoint of step 6 of base_, on other data.
  std::string branched(int steps, std::vector<std::string> overrides = {}) {
    overrides.push_back("run.from=" + checkpoint(base_, 6).string());
    overrides.push_back("data.train=[{path: " + other_ + "}]");
    return trained(branch_, steps, overrides);
  }
  static fs::path checkpoint(const fs::path& run, int step) {
    return run / "checkpoints" / checkpoint_name(step);
  }
  static std::vector<nlohmann::json> metrics(const fs::path& run) {
    std::ifstream file(run / "metrics.jsonl");
    std::vector<nlohmann::json> records;
    for (std::string line; std::getline(file, line);)
      records.push_back(nlohmann::json::parse(line));
    return records;
  }
  std::string error_of(const std::vector<std::string>& overrides) {
    return user_error_of([&] { trained(branch_, 4, overrides); });
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  std::string other_ = directory_.write("other.txt", small_corpus(90).substr(31));
  fs::path base_ = directory_ / "base", branch_ = directory_ / "branch";
};

TEST_F(RunFrom, CountsStepsAndTokensOnAndItsScheduleFromItsStart) {
  trained(base_, 9);
  const std::string log = branched(5, {"optimizer={schedule: linear, lr: 2e-3, min_lr: 0, "
                                       "warmup_steps: 0}",
                                       "batch={global: 4, micro: 2}", "data.sequence_length=16"});
  EXPECT_THAT(
      log, HasSubstr("continues " + checkpoint(base_, 6).string() + " at step 6, trains 5 more"));
  const auto records = metrics(branch_);
  ASSERT_EQ(records.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(records[static_cast<std::size_t>(i)].at("step"), 7 + i);
    EXPECT_EQ(records[static_cast<std::size_t>(i)].at("tokens"), 6 * 6 * 24 + (i + 1) * 4 * 16);
    EXPECT_NEAR(records[static_cast<std::size_t>(i)].at("lr"), 2e-3 * (1 - (i + 1) / 5.0), 1e-12);
  }
  const TrainerState state = saved_state(fs::canonical(branch_ / "checkpoints/latest"));
  EXPECT_EQ(state.step, 11);
  EXPECT_EQ(state.samples, 5 * 4);
  EXPECT_EQ(state.stage_start, 6);
  ASSERT_EQ(state.history.size(), 1u);
  EXPECT_EQ(state.history[0].run, "base");
  EXPECT_EQ(state.history[0].first_step, 1);
  EXPECT_EQ(state.history[0].last_step, 6);
  EXPECT_EQ(state.history[0].tokens, 6 * 6 * 24);
  EXPECT_EQ(state.history[0].samples, 36);
  const RunConfig before = parse_run_config(state.history[0].config, "history");
  EXPECT_EQ(before.data.train[0].path, corpus_);
  EXPECT_EQ(before.total_steps(), 9);
  EXPECT_EQ(nlohmann::json::parse(read_text_file(branch_ / "status.json")).at("total_steps"), 11);
}

// Compared bit for bit with an engine that loads the checkpoint and makes the same step.
TEST_F(RunFrom, StartsFromTheWeightsAndMomentsOfTheCheckpoint) {
  trained(base_, 6);
  const auto backend = make_cpu_backend(2);
  const std::vector<std::string> overrides = {"run.from=" + base_.string(), "train.dropout=0",
                                              "optimizer.warmup_steps=0",
                                              "optimizer.schedule=constant"};
  const RunConfig config = parse_run_config(text(branch_, 1), "test.yaml", overrides);
  // The first step by hand: load, then one step on the first samples of the data.
  Engine engine(*backend, *backend, engine_options(config));
  engine.prepare();
  load_checkpoint(checkpoint(base_, 6), engine);
  RunConfig resolved = config;
  const RunData data(resolved);
  BatchLoader loader(data.order(), data.sample_options(),
                     {.schedule = BatchSchedule(6), .first_step = 1, .batches = 1, .depth = 1});
  const SampleBatch& batch = loader.next();
  const TokenBatch tokens{batch.ids, batch.targets, batch.positions, batch.document_start};
  const double targets = engine.targets_of(tokens);
  engine.begin_step(tokens, {.step = 7, .lr = 4e-3, .seed = 3, .targets = targets});
  const LocalStepResult expected = engine.finish_step();

  trained(branch_, 1, overrides);
  const auto records = metrics(branch_);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].at("loss").get<double>(), expected.sums.front() / targets);
  EXPECT_EQ(records[0].at("grad_norm").get<double>(), expected.gradient_norm);
  const fs::path by_hand = directory_ / "by_hand";
  fs::create_directories(by_hand / "state");
  TrainerState state;
  state.step = 7;
  save_checkpoint(by_hand, engine, state, {});
  const char* moments = "optimizer.safetensors";
  EXPECT_TRUE(read_text_file(state_directory(by_hand / checkpoint_name(7)) / moments) ==
              read_text_file(state_directory(checkpoint(branch_, 7)) / moments));
  EXPECT_TRUE(read_text_file(by_hand / checkpoint_name(7) / "model.safetensors") ==
              read_text_file(checkpoint(branch_, 7) / "model.safetensors"));
}

TEST_F(RunFrom, ResumesBitForBit) {
  trained(base_, 6);
  branched(7);
  const fs::path again = directory_ / "again";
  const CheckpointPaths from{branch_ / "checkpoints", checkpoint_name(9)};
  const CheckpointPaths to{again / "checkpoints", checkpoint_name(9)};
  fs::create_directories(to.folder / "state");
  fs::copy(from.model(), to.model(), fs::copy_options::recursive);
  fs::copy(from.state(), to.state(), fs::copy_options::recursive);
  // The base run is no longer needed.
  fs::rename(base_, directory_ / "moved");
  trained(again, 7,
          {"run.from=" + checkpoint(base_, 6).string(), "data.train=[{path: " + other_ + "}]"});
  for (const char* file : {"model.safetensors", "trainer.json"})
    EXPECT_TRUE(read_text_file(checkpoint(again, 13) / file) ==
                read_text_file(checkpoint(branch_, 13) / file))
        << file;
  EXPECT_TRUE(read_text_file(state_directory(checkpoint(again, 13)) / "optimizer.safetensors") ==
              read_text_file(state_directory(checkpoint(branch_, 13)) / "optimizer.safetensors"));
}

TEST_F(RunFrom, LineageOfABranchOfABranch) {
  trained(base_, 6);
  branched(5);
  RunConfig config = parse_run_config(text(directory_ / "third", 4), "test.yaml",
                                      {"run.from=" + checkpoint(branch_, 9).string()});
  const auto stages = lineage_of(config);
  ASSERT_EQ(stages.size(), 3u);
  const auto range = [&](std::size_t i) {
    return std::tuple(stages[i].run, stages[i].first_step, stages[i].last_step);
  };
  EXPECT_EQ(range(0), std::tuple("base", 1, 6));
  EXPECT_EQ(range(1), std::tuple("branch", 7, 9));
  EXPECT_EQ(range(2), std::tuple("third", 10, 13));
  EXPECT_EQ(stages[1].config().data.train[0].path, other_);
}

TEST_F(RunFrom, WarnsWhenTheLearningRateJumps) {
  trained(base_, 6);
  EXPECT_THAT(branched(20, {"optimizer.warmup_steps=20"}),
              HasSubstr("the learning rate jumps at step 7"));
}

TEST_F(RunFrom, KeepsTheLossScaleAndTheSkippedSteps) {
  const std::vector<std::string> half = {"optimizer.warmup_steps=0", "train.precision=fp16",
                                         "train.loss_scale={initial: 1024, growth_interval: 4}"};
  trained(base_, 6, half);
  const TrainerState before = saved_state(checkpoint(base_, 6));
  EXPECT_EQ(before.loss_scale.scale, 2048);
  EXPECT_EQ(before.loss_scale.good_steps, 2);
  branched(1, half);
  EXPECT_EQ(metrics(branch_)[0].at("loss_scale"), 2048.0);
  EXPECT_EQ(saved_state(checkpoint(branch_, 7)).loss_scale.good_steps, 3);
}

TEST_F(RunFrom, RopeScalingAndLengthMayChange) {
  trained(base_, 6);
  branched(2, {"data.sequence_length=48",
               "model.rope_scaling={type: yarn, factor: 2, original_max_positions: 24}"});
  const ModelConfig model = read_hf_config(checkpoint(branch_, 8) / "config.json");
  ASSERT_TRUE(model.rope_scaling);
  EXPECT_EQ(model.rope_scaling->factor, 2);
}

TEST_F(RunFrom, BadInputIsRefusedInOneLineBeforeAnythingIsWritten) {
  trained(base_, 6);
  const std::string from = "run.from=" + base_.string();
  EXPECT_THAT(error_of({"run.from=" + (directory_ / "none").string()}),
              AllOf(HasSubstr("run.from: there is no "), HasSubstr("give a run directory")));
  EXPECT_THAT(error_of({"run.from=" + directory_.path().string()}),
              HasSubstr("holds no checkpoint"));
  EXPECT_THAT(error_of({from, "model.layers=3"}),
              AllOf(HasSubstr("holds another model"), HasSubstr("model.layers is 3, not 2")));
  EXPECT_THAT(error_of({from, "model.vocab_size=512"}), HasSubstr("vocab_size is 512, not 256"));
  EXPECT_THAT(error_of({from, "model={init: " + base_.string() + "}"}),
              AllOf(HasSubstr("run.from"), HasSubstr("model.init")));
  EXPECT_FALSE(fs::exists(branch_));
  EXPECT_THAT(
      user_error_of([&] { trained(base_, 9, {"run.from=" + checkpoint(base_, 3).string()}); }),
      HasSubstr("is in the run's own directory"));
  fs::remove_all(state_directory(checkpoint(base_, 6)));
  EXPECT_THAT(error_of({"run.from=" + checkpoint(base_, 6).string()}),
              AllOf(HasSubstr("cannot be continued"), HasSubstr("optimizer's state")));
  EXPECT_FALSE(fs::exists(branch_));
}

// These are found while the checkpoint is loaded, after the directory of the new run was locked.
TEST_F(RunFrom, ARefusedCheckpointLeavesNoDirectory) {
  trained(base_, 6);
  const std::string from = "run.from=" + base_.string();
  error_of({from, "optimizer.kind=muon"});
  EXPECT_FALSE(fs::exists(branch_));
  for (const fs::path& file : {checkpoint(base_, 6) / "model.safetensors",
                               state_directory(checkpoint(base_, 6)) / "optimizer.safetensors",
                               state_directory(checkpoint(base_, 6)) / "config.yaml"}) {
    const std::string content = read_text_file(file);
    std::string damaged = content;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    std::ofstream(file, std::ios::binary) << damaged;
    EXPECT_THAT(error_of({from}), AllOf(HasSubstr(file.filename().string()),
                                        HasSubstr("copy it again, or name another checkpoint in "
                                                  "run.from"),
                                        Not(HasSubstr("delete"))));
    EXPECT_FALSE(fs::exists(branch_));
    std::ofstream(file, std::ios::binary) << content;
  }
  // A directory of the user stays.
  fs::create_directories(branch_);
  error_of({from, "optimizer.kind=muon"});
  EXPECT_TRUE(fs::exists(branch_) && fs::is_empty(branch_));
}

TEST_F(RunFrom, AChangeAfterTheStartHasNoEffect) {
  trained(base_, 6);
  branched(3);
  EXPECT_THAT(branched(4), Not(HasSubstr("changed: run.from")));
  const std::string other = checkpoint(base_, 3).string(), first = checkpoint(base_, 6).string();
  const std::string log =
      trained(branch_, 5, {"run.from=" + other, "data.train=[{path: " + other_ + "}]"});
  EXPECT_THAT(log, HasSubstr("changed: run.from " + first + " → " + other + " without effect"));
  EXPECT_EQ(parse_run_config(read_text_file(branch_ / "config.yaml"), "saved").run.from, first);
  const std::string removed = trained(branch_, 6, {"data.train=[{path: " + other_ + "}]"});
  EXPECT_THAT(removed, HasSubstr("changed: run.from " + first + " → null without effect"));
  EXPECT_EQ(parse_run_config(saved_config(checkpoint(branch_, 12)), "saved").run.from, first);
}

}  // namespace
}  // namespace kintsugi
