// What a resume logs about changes of the configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "tensor/safetensors.h"
#include "train/config/changes.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

RunConfig config_with(const std::vector<std::string>& overrides) {
  return parse_run_config(small_config("a.txt", "run", "steps: 10"), "test.yaml", overrides);
}

TEST(ConfigChanges, ListsEveryKeyThatDiffers) {
  const RunConfig before = config_with({});
  EXPECT_TRUE(config_changes(to_yaml(before), before).empty());
  const auto changes = config_changes(
      to_yaml(before), config_with({"optimizer.lr=0.001", "data.train=[{path: b.txt}]",
                                    "optimizer.betas=[0.9, 0.99]", "threads=3"}));
  std::vector<std::string> keys;
  for (const ConfigChange& change : changes) {
    keys.push_back(change.key);
    EXPECT_NE(change.before, change.after) << change.key;
  }
  EXPECT_EQ(keys,
            (std::vector<std::string>{"data.train", "optimizer.betas", "optimizer.lr", "threads"}));
  EXPECT_THAT(changes[0].before, HasSubstr("a.txt"));
  EXPECT_THAT(changes[0].after, HasSubstr("b.txt"));
}

TEST(ConfigChanges, AFileOfAnOlderVersionMayLackKeys) {
  EXPECT_EQ(config_changes("threads: 5\noptimizer: {warmup_steps: 2}\n", config_with({})),
            (std::vector<ConfigChange>{{"threads", "5", "0"}}));
}

TEST(ScheduleJump, ExtendingADecayedRunIsNoticed) {
  const auto wsd = [](std::int64_t steps) {
    return Schedule{.kind = ScheduleKind::Wsd, .lr = 1e-3, .min_lr = 1e-5, .total_steps = steps};
  };
  const std::string jump = schedule_jump(wsd(100), wsd(200), 101);
  EXPECT_THAT(jump, AllOf(HasSubstr("jumps at step 101"), HasSubstr("ended at step 100"),
                          HasSubstr("1e-05"), HasSubstr("0.001")));
  EXPECT_NE(schedule_jump(wsd(100), wsd(200), 95), "");  // during the decay
  EXPECT_EQ(schedule_jump(wsd(100), wsd(200), 60), "");  // before it
  EXPECT_EQ(schedule_jump(wsd(100), wsd(100), 95), "");
}

// Cosine to 1e-4, constant at 1e-3, linear from 1e-3, warm-up from 0.
TEST(ScheduleJump, JumpsBetweenPlannedStagesAreKnownAtTheStart) {
  const RunConfig run = parse_run_config(
      small_config("a.txt", "run", "eval_every: 0",
                   "stages: [{steps: 20}, {name: flat, steps: 20, optimizer: {schedule: constant}},"
                   " {steps: 20, optimizer: {schedule: linear, min_lr: 0}},"
                   " {steps: 20, optimizer: {warmup_steps: 10}}]\n"),
      "test.yaml", {"optimizer={lr: 1e-3, min_lr: 1e-4, warmup_steps: 0}"});
  const auto jumps = planned_jumps(run, 0);
  ASSERT_EQ(jumps.size(), 2u);
  EXPECT_EQ(jumps[0],
            "stage 2 of 4 (flat): the learning rate jumps from 0.0001 to 0.001 at its start; to "
            "avoid the jump, choose optimizer.schedule, lr and min_lr of the stages to match");
  EXPECT_THAT(jumps[1], HasSubstr("stage 4 of 4 (stage-4): the learning rate jumps from 0 to"));
  EXPECT_EQ(planned_jumps(run, 1).size(), 1u);
  EXPECT_TRUE(planned_jumps(run, 3).empty());
  EXPECT_TRUE(planned_jumps(config_with({}), 0).empty());
}

TEST(ScheduleJump, TheExamplesOfStagesHaveNone) {
  const std::string page = content_of(source_directory() + "/docs/stages.md");
  const std::string mark = "```yaml\n";
  const std::size_t begin = page.find(mark) + mark.size();
  const std::string first = page.substr(begin, page.find("```", begin) - begin);
  for (const std::string& text :
       {first, content_of(source_directory() + "/examples/stages.yaml")}) {
    const RunConfig run = parse_run_config(text, "example");
    EXPECT_EQ(run.stage_count(), 3);
    EXPECT_TRUE(planned_jumps(run, 0).empty());
  }
}

class ResumeChanges : public testing::Test {
 protected:
  std::string log_of(const std::string& settings, const std::vector<std::string>& overrides = {}) {
    const auto backend = make_cpu_backend(2);
    Trainer trainer(
        *backend, parse_run_config(small_config(corpus_, run_, settings), "test.yaml", overrides));
    const CapturedLog log;
    trainer.run(ResumeMode::Auto);
    return log.text();
  }
  std::vector<nlohmann::json> metrics() const {
    std::ifstream file(run_ / "metrics.jsonl");
    std::vector<nlohmann::json> records;
    for (std::string line; std::getline(file, line);)
      records.push_back(nlohmann::json::parse(line));
    return records;
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  fs::path run_ = directory_ / "run";
  const std::string steps_ = "eval_every: 0, checkpoint_every: 0, steps: ";
};

TEST_F(ResumeChanges, AResumePrintsEveryKeyThatDiffersAndAJump) {
  EXPECT_THAT(log_of(steps_ + "4"), Not(HasSubstr("changed:")));
  const std::string log = log_of(steps_ + "8", {"optimizer.lr=0.002"});
  EXPECT_THAT(log, HasSubstr("changed: optimizer.lr 0.004 → 0.002 from step 5 on"));
  EXPECT_THAT(log, HasSubstr("changed: train.steps 4 → 8 from step 5 on"));
  EXPECT_THAT(log, Not(HasSubstr("changed: batch")));
  EXPECT_THAT(log, HasSubstr("the learning rate jumps at step 5"));
}

// A run with changes was killed before its first save: changes are relative to the checkpoint.
TEST_F(ResumeChanges, ChangesAreThoseSinceTheCheckpoint) {
  log_of(steps_ + "4");
  write_file_atomically(run_ / "config.yaml", to_yaml(config_with({"optimizer.lr=9"})));
  EXPECT_THAT(log_of(steps_ + "8"), Not(HasSubstr("changed: optimizer.lr")));
}

TEST_F(ResumeChanges, ARunThatTrainsNothingKeepsItsConfiguration) {
  log_of(steps_ + "4");
  const std::string before = read_text_file(run_ / "config.yaml");
  EXPECT_THAT(log_of(steps_ + "4", {"optimizer.lr=0.002"}), HasSubstr("all 4 steps are done"));
  EXPECT_EQ(read_text_file(run_ / "config.yaml"), before);
}

TEST_F(ResumeChanges, FewerStepsThanWereDoneAreRefused) {
  log_of(steps_ + "4");
  const std::string before = read_text_file(run_ / "config.yaml");
  EXPECT_THAT(user_error_of([&] { log_of(steps_ + "3"); }),
              HasSubstr("has done 4 steps, the configuration asks for 3"));
  EXPECT_EQ(read_text_file(run_ / "config.yaml"), before);
  EXPECT_EQ(metrics().size(), 4u);
}

// 1440 tokens are 10 steps of 6 sequences of 24 tokens. After 5 of them, 720 tokens are left.
TEST_F(ResumeChanges, AnotherBatchKeepsTheNumberOfTokens) {
  struct Case {
    const char* batch;
    std::size_t steps;
    int tokens;
  };
  for (const Case& one : {Case{"6", 10, 1440}, Case{"4", 13, 1488}, Case{"12", 8, 1584}}) {
    SCOPED_TRACE(one.batch);
    fs::remove_all(run_);
    const std::string all = "eval_every: 0, checkpoint_every: 2, tokens: 1440";
    log_of(all + ", steps: 5");
    const std::vector<std::string> batch = {std::string("batch.global=") + one.batch};
    log_of(all + ", steps: 7", batch);
    log_of(all, batch);
    const auto records = metrics();
    ASSERT_EQ(records.size(), one.steps);
    EXPECT_EQ(records.back().at("tokens"), one.tokens);
    EXPECT_EQ(saved_state(run_ / "checkpoints/latest").samples, one.tokens / 24);
    const Schedule schedule{.lr = 4e-3,
                            .min_lr = 1e-4,
                            .warmup_steps = 2,
                            .total_steps = static_cast<std::int64_t>(one.steps)};
    for (std::size_t i = 7; i < one.steps; ++i)
      EXPECT_EQ(records[i].at("lr"), schedule.learning_rate(static_cast<std::int64_t>(i) + 1));
    EXPECT_THAT(log_of(all, batch), HasSubstr(fmt::format("all {} steps are done", one.steps)));
  }
  // Fewer tokens than were trained.
  EXPECT_THAT(user_error_of([&] { log_of("eval_every: 0, tokens: 1000", {"batch.global=12"}); }),
              HasSubstr("has done 8 steps, the configuration asks for 6"));
}

// A 16-bit run continues in fp32 exactly from its master weights.
TEST_F(ResumeChanges, AnotherPrecisionContinuesFromTheMasterWeights) {
  log_of(steps_ + "4, precision: bf16");
  const fs::path model = fs::canonical(run_ / "checkpoints/latest");
  const auto backend = make_cpu_backend(2);
  const RunConfig config =
      parse_run_config(small_config(corpus_, run_, steps_ + "8, precision: fp32"), "test.yaml");
  Engine engine(*backend, *backend, engine_options(config));
  engine.prepare();
  load_checkpoint(model, engine);
  std::vector<float> weights(static_cast<std::size_t>(engine.sharding().weights().elements()));
  backend->download(weights.data(), engine.sharding().weights());
  const SafetensorsModel state(state_directory(model), "optimizer");
  for (const Parameter& parameter : engine.parameters().parameters()) {
    const auto master = state.find("master." + parameter.name);
    ASSERT_EQ(master.entry->dtype, DType::F32);
    EXPECT_EQ(std::memcmp(master.bytes().data(), weights.data() + parameter.offset,
                          master.bytes().size()),
              0)
        << parameter.name;
  }
  EXPECT_THAT(log_of(steps_ + "8, precision: fp32"),
              HasSubstr("changed: train.precision bf16 → fp32 from step 5 on"));
}

TEST_F(ResumeChanges, AnotherPrecisionStartsWithItsOwnLossScale) {
  log_of(steps_ + "4");
  log_of(steps_ + "6, precision: fp16, loss_scale: {initial: 512}");
  EXPECT_EQ(metrics().back().at("loss_scale"), 512.0);
  EXPECT_FALSE(metrics().back().at("grad_norm").is_null());
  log_of(steps_ + "8, precision: fp64");
  EXPECT_EQ(metrics().back().at("step"), 8);
}

// With the binary: the run is rolled back, trains on a new branch, and loses its newest checkpoint.
TEST_F(ResumeChanges, ARunThatWasRolledBackStaysOnItsNewBranch) {
  const std::string each = "eval_every: 0, checkpoint_every: 2, steps: ";
  log_of(each + "6");
  const fs::path folder = run_ / "checkpoints";
  point_latest_to({folder, checkpoint_name(2)});
  EXPECT_THAT(log_of(each + "4", {"optimizer.lr=0.001"}),
              HasSubstr("step-00000006 is on an abandoned branch"));
  fs::remove_all(folder / "step-00000004");
  const std::string log = log_of(each + "4", {"optimizer.lr=0.001"});
  EXPECT_THAT(log, HasSubstr("continuing from " + (folder / "step-00000002").string()));
  EXPECT_EQ(metrics().back().at("step"), 4);
}

}  // namespace
}  // namespace kintsugi
