// Runs of several stages: each has its own data, length, schedule and layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/file.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "support/thread_world.h"
#include "train/engine_options.h"
#include "train/run_history.h"
#include "train/staged_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kSteps = 12;

// Trains on four ranks, which are threads. `watch` is that of rank 0.
RunOutcome train_staged(const std::string& yaml, const StagedRun::WatchTrainer& watch = {},
                        int ranks = kRanks) {
  RunOutcome outcome = RunOutcome::Stopped;
  run_ranks(ranks, [&](World& world) {
    const auto backend = make_cpu_backend(1);
    const RunConfig config = parse_run_config(yaml, "test.yaml");
    std::optional<Groups> groups;
    const auto groups_of = [&](const RunConfig& stage) -> const Groups& {
      groups.reset();
      return groups.emplace(make_groups(world, grid_of(layout_on(stage, ranks), stage.model)));
    };
    StagedRun run(*backend, config, stage_to_train(config), groups_of, {});
    const RunOutcome own =
        run.run(ResumeMode::Auto, world.rank() == 0 ? watch : StagedRun::WatchTrainer());
    if (world.rank() == 0) outcome = own;
  });
  return outcome;
}

class Stages : public testing::Test {
 protected:
  // Three stages of four steps, each with its own data, length, batch, schedule and layout.
  std::string config(const fs::path& run,
                     const std::string& train = "checkpoint_every: 1, keep_checkpoints: 0",
                     const std::string& first = "steps: 4") const {
    return fmt::format(
        "run: {{dir: \"{0}\", seed: 3}}\n"
        "model: {{family: llama, vocab_size: 256, hidden_size: 32, layers: 2, heads: 4, "
        "kv_heads: 2, ffn_size: 48, max_positions: 24}}\n"
        "data: {{train: [{{path: \"{1}\"}}], sequence_length: 24}}\n"
        "batch: {{global: 8, micro: 1}}\n"
        "optimizer: {{lr: 4e-3, min_lr: 1e-4, warmup_steps: 0}}\n"
        "train: {{eval_every: 0, dropout: 0.1, {4}}}\n"
        "stages:\n"
        "  - {{name: start, {5}, optimizer: {{warmup_steps: 2, schedule: constant}}, "
        "layout: {{zero: 1}}}}\n"
        "  - name: long\n"
        "    tokens: 1536\n"  // 4 steps of 8 x 48
        "    sequence_length: 48\n"
        "    rope_scaling: {{type: yarn, factor: 2, original_max_positions: 24}}\n"
        "    data: {{train: [{{path: \"{2}\"}}]}}\n"
        "    layout: {{tp: 2, zero: 2}}\n"
        "  - name: anneal\n"
        "    steps: 4\n"
        "    data: {{train: [{{path: \"{3}\"}}], document_mask: true}}\n"
        "    batch: {{global: 4, micro: 1}}\n"
        "    optimizer: {{schedule: linear, lr: 2e-3, min_lr: 0}}\n"
        "    layout: {{pp: 2}}\n",
        run.string(), first_, second_, third_, train, first);
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
  // The run directory as a kill right after this checkpoint would leave it.
  static void copy_checkpoint(const fs::path& from, const fs::path& to, int step) {
    const CheckpointPaths source{from / "checkpoints", checkpoint_name(step)};
    const CheckpointPaths target{to / "checkpoints", checkpoint_name(step)};
    fs::create_directories(target.folder / "state");
    fs::copy(source.model(), target.model(), fs::copy_options::recursive);
    fs::copy(source.state(), target.state(), fs::copy_options::recursive);
  }
  static void expect_same_end(const fs::path& a, const fs::path& b) {
    const fs::path one = checkpoint(a, kSteps), other = checkpoint(b, kSteps);
    for (const char* file : {"model.safetensors", "trainer.json", "config.json"})
      EXPECT_TRUE(read_text_file(one / file) == read_text_file(other / file)) << file;
    const char* state = "optimizer.safetensors";
    EXPECT_TRUE(read_text_file(state_directory(one) / state) ==
                read_text_file(state_directory(other) / state));
  }

  TemporaryDirectory directory_;
  std::string first_ = directory_.write("first.txt", small_corpus(120));
  std::string second_ = directory_.write("second.txt", small_corpus(150).substr(17));
  std::string third_ = directory_.write("third.txt", small_corpus(90).substr(40));
  fs::path whole_ = directory_ / "whole";
};

TEST_F(Stages, ResumeBitForBitFromEveryStepOfEveryStage) {
  const CapturedLog log;
  EXPECT_EQ(train_staged(config(whole_)), RunOutcome::Finished);
  for (int step = 1; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    const fs::path broken = directory_ / fmt::format("killed-{}", step);
    copy_checkpoint(whole_, broken, step);
    EXPECT_EQ(train_staged(config(broken)), RunOutcome::Finished);
    expect_same_end(broken, whole_);
  }
}

// The signal arrives after the second trainer was made and before it has trained.
TEST_F(Stages, ASignalBetweenTwoStagesStopsTheRunThere) {
  const CapturedLog log;
  train_staged(config(whole_));
  const fs::path broken = directory_ / "stopped";
  const auto stop = [](Trainer* trainer) {
    if (trainer != nullptr && trainer->config().stage == 1) std::raise(SIGTERM);
  };
  EXPECT_EQ(train_staged(config(broken), stop), RunOutcome::Stopped);
  EXPECT_EQ(metrics(broken).size(), 4u);
  EXPECT_EQ(nlohmann::json::parse(read_text_file(broken / "status.json")).at("state"), "stopped");
  EXPECT_EQ(train_staged(config(broken)), RunOutcome::Finished);
  expect_same_end(broken, whole_);
}

TEST_F(Stages, CountStepsAndTokensOnAndTheirSchedulesAndSamplesFromTheirStarts) {
  const CapturedLog log;
  train_staged(config(whole_, "checkpoint_every: 0"));
  const auto records = metrics(whole_);
  ASSERT_EQ(records.size(), 12u);
  const double pi = std::numbers::pi;
  const auto cosine = [&](int step) {
    return 1e-4 + (4e-3 - 1e-4) * 0.5 * (1 + std::cos(pi * step / 4));
  };
  const std::vector<double> rates = {2e-3,      4e-3,      4e-3,   4e-3, cosine(1), cosine(2),
                                     cosine(3), cosine(4), 1.5e-3, 1e-3, 5e-4,      0};
  std::int64_t tokens = 0;
  for (int i = 0; i < kSteps; ++i) {
    const auto& record = records[static_cast<std::size_t>(i)];
    tokens += i < 4 ? 8 * 24 : i < 8 ? 8 * 48 : 4 * 24;
    EXPECT_EQ(record.at("step"), i + 1);
    EXPECT_EQ(record.at("tokens"), tokens);
    EXPECT_NEAR(record.at("lr"), rates[static_cast<std::size_t>(i)], 1e-12) << i + 1;
    EXPECT_EQ(record.at("stage"), i < 4 ? "start" : i < 8 ? "long" : "anneal");
  }
  const TrainerState state = saved_state(checkpoint(whole_, 12));
  EXPECT_EQ(state.stage, 2);
  EXPECT_EQ(state.stage_start, 8);
  EXPECT_EQ(state.samples, 16);
  ASSERT_EQ(state.history.size(), 2u);
  EXPECT_EQ(state.history[1].name, "long");
  EXPECT_EQ(state.history[1].first_step, 5);
  EXPECT_EQ(state.history[1].last_step, 8);
  EXPECT_EQ(state.history[1].tokens, 1536);
  EXPECT_EQ(parse_run_config(state.history[1].config, "history").data.train[0].path, second_);
  EXPECT_EQ(nlohmann::json::parse(read_text_file(whole_ / "status.json")).at("total_steps"), 12);
  EXPECT_THAT(log.text(), AllOf(HasSubstr("stage 2 of 3 (long): steps 5-8 of 12"),
                                HasSubstr("3/3 step     12/12")));
  EXPECT_THAT(read_text_file(checkpoint(whole_, 12) / "README.md"),
              HasSubstr("| whole | long | 5-8 | 1536 |"));
  // Each stage's model in its checkpoint.
  EXPECT_FALSE(read_hf_config(checkpoint(whole_, 4) / "config.json").rope_scaling);
  const ModelConfig longer = read_hf_config(checkpoint(whole_, 8) / "config.json");
  ASSERT_TRUE(longer.rope_scaling);
  EXPECT_EQ(longer.rope_scaling->factor, 2);
  EXPECT_EQ(longer.max_positions, 48);
}

TEST_F(Stages, TheCheckpointAtTheEndOfAStageIsKept) {
  const CapturedLog log;
  train_staged(config(whole_, "keep_checkpoints: 1, checkpoint_every: 1"));
  std::vector<std::string> names;
  for (const CheckpointPaths& one : list_checkpoints(whole_ / "checkpoints"))
    names.push_back(one.name);
  EXPECT_THAT(names, ElementsAre("step-00000004", "step-00000008", "step-00000012"));
}

TEST_F(Stages, WhatAResumeMayChange) {
  const CapturedLog log;
  train_staged(config(whole_));
  const auto changed = [&](int step, const std::string& from, const std::string& to) {
    const fs::path run = directory_ / fmt::format("changed-{}", step);
    fs::remove_all(run);
    copy_checkpoint(whole_, run, step);
    std::string text = config(run);
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const auto refused = [&](const std::string& text) {
    return user_error_of([&] { train_staged(text); });
  };
  const std::string start = "start, steps: 4", longer = "start, steps: 5";
  EXPECT_THAT(refused(changed(6, start, longer)),
              AllOf(HasSubstr("stage 1 (start)"), HasSubstr("was trained for 4 steps"),
                    HasSubstr("asks for 5")));
  EXPECT_THAT(refused(changed(6, second_, third_)), HasSubstr("other data"));  // of this stage
  // A later stage may change, and so may a stage that no other one has continued.
  train_staged(changed(6, "steps: 4\n    data", "steps: 7\n    data"));
  EXPECT_EQ(saved_state(checkpoint(directory_ / "changed-6", 15)).stage, 2);
  train_staged(changed(4, start, longer));
  EXPECT_EQ(saved_state(checkpoint(directory_ / "changed-4", 5)).stage, 0);
  EXPECT_EQ(saved_state(checkpoint(directory_ / "changed-4", 13)).stage, 2);
  const std::string one_stage = small_config(first_, directory_ / "changed-6", "steps: 4");
  EXPECT_THAT(user_error_of([&] { stage_to_train(parse_run_config(one_stage, "test.yaml")); }),
              HasSubstr("is in stage 3, but the configuration has 1"));
}

// Stage `long` has 1536 tokens: two steps of 8 sequences of 48, and four of 4.
TEST_F(Stages, AnotherBatchKeepsTheTokensOfAStage) {
  const CapturedLog log;
  train_staged(config(whole_));
  const fs::path run = directory_ / "changed";
  copy_checkpoint(whole_, run, 6);
  const std::string length = "    tokens: 1536\n";
  std::string text = config(run);
  text.insert(text.find(length), "    batch: {global: 4, micro: 1}\n");
  train_staged(text);
  const TrainerState state = saved_state(checkpoint(run, 14));
  EXPECT_EQ(state.tokens, saved_state(checkpoint(whole_, 12)).tokens);
  ASSERT_EQ(state.history.size(), 2u);
  EXPECT_EQ(state.history[1].last_step, 10);
  EXPECT_EQ(state.history[1].tokens, 1536);
  EXPECT_EQ(state.history[1].batches, (std::vector<PastBatch>{{8, {}, {2, 16}}}));
  EXPECT_TRUE(state.batches.empty());
  // The finished stage still has its length, whatever its batch is now.
  train_staged(text);
  text.replace(text.find("global: 4, micro: 1}\n" + length), 9, "global: 8");
  EXPECT_EQ(stage_to_train(parse_run_config(text, "test.yaml")), 2);
  train_staged(text);
  const auto stages = lineage_of(parse_run_config(text, "test.yaml"));
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[1].config().batches().first_sample(4), 20);
  EXPECT_EQ(stages[2].first_step, 11);
}

TEST_F(Stages, AShorterLastStageIsRefusedByItsName) {
  const CapturedLog log;
  train_staged(config(whole_));
  std::string text = config(whole_);
  text.replace(text.find("steps: 4\n    data"), 8, "steps: 3");
  EXPECT_THAT(user_error_of([&] { train_staged(text); }),
              AllOf(HasSubstr("stage 3 of 3 (anneal) of the run in "),
                    HasSubstr("has done 4 steps, the configuration asks for 3: raise "
                              "stages[2].steps (or stages[2].tokens)")));
}

TEST_F(Stages, AHeldOutPartThatIsTooShortNamesItsStage) {
  const auto error = [&](const std::string& first, const std::string& second) {
    return user_error_of([&] {
      train_staged(small_config(first_, whole_, "",
                                fmt::format("stages: [{{name: a, steps: 2{}}}, {{name: b, steps: "
                                            "2{}}}]\n",
                                            first, second)),
                   {}, 1);
    });
  };
  const std::string none = ", data: {valid_fraction: 0.001}";
  EXPECT_THAT(error(none, ""), HasSubstr("stage 1 of 2 (a): the held-out part"));
  EXPECT_THAT(error("", none), HasSubstr("stage 2 of 2 (b): the held-out part"));
}

TEST_F(Stages, ARunWithoutStagesCanGetSomeLater) {
  const CapturedLog log;
  train_staged(small_config(first_, whole_, "eval_every: 0, steps: 4"), {}, 1);
  train_staged(small_config(first_, whole_, "eval_every: 0",
                            "stages: [{steps: 4}, {steps: 2, sequence_length: 12, "
                            "train: {checkpoint_every: 1, keep_checkpoints: 1}}]\n"),
               {}, 1);
  EXPECT_TRUE(fs::exists(checkpoint(whole_, 4))) << "the end of the first stage";
  EXPECT_FALSE(fs::exists(checkpoint(whole_, 5)));
  EXPECT_EQ(metrics(whole_).size(), 6u);
  const TrainerState state = saved_state(checkpoint(whole_, 6));
  EXPECT_EQ(state.stage, 1);
  EXPECT_EQ(state.tokens, 4 * 6 * 24 + 2 * 6 * 12);
}

// The second stage ends at 1e-4 and the third starts at 2e-3, less a step.
TEST_F(Stages, AJumpOfTheLearningRateIsReportedAtTheStart) {
  const CapturedLog log;
  run_ranks(kRanks, [&](World& world) {
    const auto backend = make_cpu_backend(1);
    std::optional<Groups> groups;
    const auto groups_of = [&](const RunConfig& stage) -> const Groups& {
      groups.reset();
      return groups.emplace(make_groups(world, grid_of(layout_on(stage, kRanks), stage.model)));
    };
    const StagedRun checked(*backend, parse_run_config(config(whole_), "test.yaml"), 0, groups_of,
                            {});
  });
  const std::string warnings = log.warnings();
  const std::string jump =
      "stage 3 of 3 (anneal): the learning rate jumps from 0.0001 to 0.0015 at its start";
  EXPECT_THAT(warnings, HasSubstr(jump));
  EXPECT_EQ(warnings.find(jump), warnings.rfind(jump)) << "one rank reports it";
  EXPECT_FALSE(fs::exists(whole_));
}

// Everything is checked before the first step of the first stage.
TEST_F(Stages, AMistakeInTheLastStageIsReportedAtTheStart) {
  std::string text = config(whole_);
  const std::string good = text;
  fs::remove(third_);
  EXPECT_THAT(user_error_of([&] { train_staged(text); }),
              AllOf(HasSubstr("stage 3 of 3 (anneal): "), HasSubstr("third.txt")));
  directory_.write("third.txt", small_corpus(90));
  text.replace(text.find("{pp: 2}"), 7, "{pp: 4}");
  EXPECT_THAT(user_error_of([&] { train_staged(text); }), HasSubstr("stage 3 of 3 (anneal): "));
  EXPECT_FALSE(fs::exists(whole_));
}

// One rank, so that the same command can continue a run without stages.
TEST_F(Stages, ARunFromABoundaryAndItsLineage) {
  const CapturedLog log;
  train_staged(config(whole_));
  const RunConfig branch =
      parse_run_config(small_config(first_, directory_ / "branch", "steps: 5"), "test.yaml",
                       {"run.from=" + checkpoint(whole_, 8).string(), "model.max_positions=24"});
  const auto stages = lineage_of(branch);
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0].description(), "stage start of run whole (steps 1 to 4)");
  EXPECT_EQ(stages[1].description(), "stage long of run whole (steps 5 to 8)");
  EXPECT_EQ(stages[2].description(), "run branch (steps 9 to 13)");
  EXPECT_EQ(stages[1].config().data.sequence_length, 48);
  EXPECT_EQ(stages[1].config().layout.tp, 2);
  const auto own = lineage_of(parse_run_config(config(directory_ / "new"), "test.yaml"));
  ASSERT_EQ(own.size(), 3u);
  EXPECT_EQ(own[2].description(), "stage anneal of run new (steps 9 to 12)");
}

// ---- the configuration

class StagedConfig : public testing::Test {
 protected:
  static RunConfig parse(const std::string& stages, std::vector<std::string> overrides = {}) {
    return parse_run_config(
        "model: {preset: llama-tiny}\n"
        "data: {train: [{path: a.txt}], sequence_length: 64}\n"
        "optimizer: {warmup_steps: 0}\n" +
            stages,
        "run.yaml", overrides);
  }
  static std::string error(const std::string& stages, std::vector<std::string> overrides = {}) {
    return user_error_of([&] { parse(stages, overrides); });
  }
};

TEST_F(StagedConfig, AStageIsTheFileWithItsKeysOnTop) {
  const RunConfig run = parse(
      "stages:\n  - {name: a, steps: 10, optimizer: {lr: 0.5}}\n"
      "  - {tokens: 8k, sequence_length: 128, train: {eval_every: 7}, batch: {global: 16}}\n");
  ASSERT_EQ(run.stages.size(), 2u);
  EXPECT_EQ(run.stage_name, "a");
  EXPECT_EQ(run.total_steps(), 10);
  EXPECT_EQ(run.steps_after(), 4);  // 8,000 tokens in steps of 16 x 128
  EXPECT_EQ(run.optimizer.lr, 0.5);
  EXPECT_EQ(run.model.max_positions, 64);
  const RunConfig second = run.at_stage(1);
  EXPECT_EQ(second.stage_name, "stage-2");
  EXPECT_EQ(second.optimizer.lr, 1e-3);
  EXPECT_EQ(second.train.eval_every, 7);
  EXPECT_EQ(second.batch.global, 16);
  EXPECT_EQ(second.model.max_positions, 128);
  EXPECT_EQ(second.data.train[0].path, "a.txt");
  EXPECT_EQ(second.steps_after(), 0);
}

// A stage on the same data has another order; also when it is written as a run of its own.
TEST_F(StagedConfig, EachHasItsOwnOrderOfSamples) {
  const RunConfig run =
      parse("stages: [{steps: 1}, {steps: 1}, {steps: 1, data: {seed: 40}}]\n", {"run.seed=7"});
  const std::vector<std::uint64_t> expected = {7, 8, 40};
  for (std::int64_t i = 0; i < 3; ++i) {
    const RunConfig stage = run.at_stage(i);
    EXPECT_EQ(stage.data_seed(), expected[static_cast<std::size_t>(i)]);
    EXPECT_EQ(stage.run.seed, 7u);
    EXPECT_EQ(parse_run_config(to_yaml(stage.alone()), "alone.yaml").data_seed(),
              stage.data_seed());
  }
}

// Positions that were trained stay in config.json.
TEST_F(StagedConfig, ALaterShorterStageKeepsThePositions) {
  const RunConfig run =
      parse("stages: [{steps: 1}, {steps: 1, sequence_length: 256}, {steps: 1}]\n");
  EXPECT_EQ(run.stages[1].model.max_positions, 256);
  EXPECT_EQ(run.stages[2].model.max_positions, 256);
  EXPECT_EQ(run.stages[2].data.sequence_length, 64);
}

TEST_F(StagedConfig, IsWrittenAndReadBack) {
  const RunConfig run = parse(
      "layout: auto\nstages:\n"
      "  - {steps: 10, layout: {tp: 2}}\n"
      "  - {tokens: 8k, sequence_length: 128, rope_theta: 5e5, rope_scaling: "
      "{type: yarn, factor: 4, original_max_positions: 64}, data: {train: [{path: b, weight: 2}, "
      "{path: c}]}}\n");
  RunConfig again = parse_run_config(to_yaml(run), "again.yaml");
  EXPECT_EQ(to_yaml(parse_run_config(to_yaml(again), "third.yaml")), to_yaml(again));
  ASSERT_EQ(again.stages.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    StageConfig &a = again.stages[i], b = run.stages[i];
    b.model_preset.clear();
    b.vocab_size_given = b.max_positions_given = b.rope_scaling_given = true;
    EXPECT_EQ(a, b) << i;
  }
  // From any stage, the same file.
  EXPECT_EQ(to_yaml(run.at_stage(1)), to_yaml(run));
}

TEST_F(StagedConfig, ErrorsNameTheStageTheKeyAndTheLine) {
  EXPECT_EQ(error("stages: []\n"),
            "run.yaml line 4: stages: the list is empty: give at least one stage, or remove it");
  EXPECT_EQ(error("stages:\n  - {steps: 5}\n  - {name: x}\n"),
            "run.yaml line 6: stages[1] has no length: give steps or tokens");
  EXPECT_EQ(error("stages:\n  - {steps: 5}\n  - steps: 5\n    optimizer: {lrr: 1}\n"),
            "run.yaml line 7: unknown key 'stages[1].optimizer.lrr'; did you mean "
            "'stages[1].optimizer.lr'?");
  EXPECT_EQ(error("stages:\n  - {steps: 5, seed: 1}\n")
                .find("run.yaml line 5: unknown key "
                      "'stages[0].seed'"),
            0u);
  EXPECT_EQ(error("stages:\n  - {steps: 5}\n  - steps: 5\n    data: {train: []}\n"),
            "run.yaml line 7: stages[1].data.train is empty: give at least one source, for example "
            "[{path: corpus.txt}]");
  EXPECT_EQ(error("stages:\n  - {steps: 5}\n  - steps: 5\n    optimizer: {warmup_steps: 6}\n"),
            "run.yaml line 7: stages[1].optimizer.warmup_steps is 6, but the run has only 5 steps: "
            "use fewer");
  EXPECT_THAT(error("stages: [{steps: 5}]\n", {"train.steps=9"}),
              AllOf(HasSubstr("--set train.steps=9"), HasSubstr("each stage has its own length")));
  EXPECT_THAT(error("stages: [{steps: 5}]\n", {"train.save=false"}), HasSubstr("train.save"));
  EXPECT_THAT(error("stages: [{steps: 5, train: {save: false}}]\n"),
              HasSubstr("unknown key 'stages[0].train.save'"));
  EXPECT_THAT(error("stages: [{steps: 5, name: x}, {steps: 5, name: x}]\n"),
              HasSubstr("stages[1].name: there are two stages named x"));
  EXPECT_EQ(error("stages:\n  - {steps: 5}\n  - {steps: 5, name: 3}\n"),
            "run.yaml line 6: stages[1].name: 3 is a number, which `data where --stage` takes as "
            "the position of a stage: choose another name");
  EXPECT_THAT(error("stages: [{steps: 5}, {steps: 5, data: {tokenizer: t}}]\n"),
              HasSubstr("stages[1].data.tokenizer"));
  EXPECT_THAT(error("stages: [{steps: 5, sequence_length: 8, data: {sequence_length: 9}}]\n"),
              HasSubstr("stages[0].sequence_length: is given twice"));
  EXPECT_THAT(error("stages: [{steps: 5, rope_scaling: {factr: 8}}]\n"),
              HasSubstr("unknown key 'stages[0].rope_scaling.factr'"));
  EXPECT_THAT(
      error("stages: [{steps: 5}, {steps: 5, sequence_length: 4096}]\n",
            {"model.preset=gpt2-124m"}),
      AllOf(HasSubstr("stages[1].data.sequence_length is 4096"), HasSubstr("learned positions")));
}

// A checkpoint of a version that had no stages.
TEST(TrainerStateFiles, OlderOnesHaveNoStageAndNoHistory) {
  const TemporaryDirectory directory;
  directory.write("trainer.json",
                  R"({"format": 1, "step": 5, "tokens": 70, "samples": 9, "seed": 3, "data": "x",
                      "loss_scale": {"scale": 2.0, "good_steps": 1, "hysteresis": 2}})");
  const TrainerState state = saved_state(directory.path());
  EXPECT_EQ(state.samples, 9);
  EXPECT_EQ(state.stage, 0);
  EXPECT_EQ(state.stage_start, 0);
  EXPECT_TRUE(state.history.empty());
  EXPECT_TRUE(state.batches.empty());
}

TEST(TrainerStateFiles, APastBatchThatIsNotPossibleIsRefused) {
  const TemporaryDirectory directory;
  directory.write("trainer.json",
                  R"({"format": 1, "step": 5, "tokens": 70, "samples": 9, "seed": 3, "data": "x",
                      "batches": [{"global": 0, "until": {"steps": 1, "samples": 8}}],
                      "loss_scale": {"scale": 2.0, "good_steps": 1, "hysteresis": 2}})");
  EXPECT_THAT(user_error_of([&] { saved_state(directory.path()); }),
              HasSubstr(R"(a past batch is {"global":0,)"));
}

}  // namespace
}  // namespace kintsugi
