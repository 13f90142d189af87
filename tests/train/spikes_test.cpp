// Spikes of the loss: what they are, and runs that go back and leave out the data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/rank_trainers.h"
#include "support/same_checkpoint.h"
#include "support/small_run.h"
#include "train/checkpoint/branches.h"
#include "train/health.h"
#include "train/run_history.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

// Median 3, distances 2, 1, 0, 1, 2 with the median 1.
TEST(Spikes, AreFarAboveTheMedian) {
  SpikeHistory history({.action = SpikeAction::Warn, .window = 5, .threshold = 4});
  for (const double loss : {1.0, 2.0, 3.0, 4.0, 5.0}) history.add(loss);
  EXPECT_DOUBLE_EQ(history.median_loss(), 3);
  EXPECT_NEAR(history.deviations(3 + 4 * 1.4826), 4, 1e-12);
  EXPECT_FALSE(history.is_spike(3 + 3.99 * 1.4826));
  EXPECT_TRUE(history.is_spike(3 + 4.01 * 1.4826));
  EXPECT_FALSE(history.is_spike(-1000)) << "a low loss is no spike";
  EXPECT_FALSE(history.is_spike(std::numeric_limits<double>::quiet_NaN()));
  history.add(1e6);  // one outlier hardly changes the limit: 2 3 4 5 1e6
  EXPECT_DOUBLE_EQ(history.median_loss(), 4);
  EXPECT_NEAR(history.deviations(4 + 1.4826), 1, 1e-12);
}

TEST(Spikes, NeedHalfAWindowAndMoreThanRounding) {
  SpikeHistory history({.action = SpikeAction::Stop, .window = 8, .threshold = 5});
  for (int i = 0; i < 3; ++i) history.add(2);
  EXPECT_FALSE(history.is_spike(100));
  history.add(2);
  EXPECT_TRUE(history.is_spike(100));
  EXPECT_FALSE(history.is_spike(2 + 1e-6)) << "all losses are equal";
  SpikeHistory off;
  for (int i = 0; i < 100; ++i) off.add(2);
  EXPECT_FALSE(off.is_spike(100));
  EXPECT_TRUE(off.state().losses.empty());
}

TEST(Spikes, RewindsFarFromEachOtherAreNotInARow) {
  SpikeHistory history({.action = SpikeAction::Rewind, .window = 10});
  EXPECT_EQ(history.next_rewind(100), 1);
  history.note_rewind(100);
  EXPECT_EQ(history.next_rewind(110), 2);
  history.note_rewind(104);
  EXPECT_EQ(history.next_rewind(114), 3);
  EXPECT_EQ(history.next_rewind(115), 1);
}

TEST(DataPosition, IsBehindWhatWasLeftOut) {
  EXPECT_EQ(data_position({}, 7), 7);
  const std::vector<SkippedSamples> skipped = {{.at = 10, .count = 5}, {.at = 20, .count = 100}};
  EXPECT_EQ(data_position(skipped, 9), 9);
  EXPECT_EQ(data_position(skipped, 10), 15);
  EXPECT_EQ(data_position(skipped, 19), 24);
  EXPECT_EQ(data_position(skipped, 20), 125);
}

// All samples of step 30 are garbage. A batch has 6 samples.
class SpikedRun : public testing::Test {
 protected:
  static constexpr int kSpike = 30, kSteps = 60;

  SpikedRun() {
    RunConfig clean = parse_run_config(config("none"), "test.yaml");
    const RunData data(clean);
    std::string text = read_text_file(corpus_);
    for (std::int64_t k = 6 * (kSpike - 1); k < 6 * kSpike; ++k) {
      std::vector<TokenRange> ranges;
      data.order().locate(k, ranges);
      for (const TokenRange& range : ranges)  // a byte is a token
        for (std::int64_t i = range.first; i < range.first + range.count; ++i)
          text.at(static_cast<std::size_t>(i)) = static_cast<char>(200 + i * 7 % 50);
    }
    std::ofstream(corpus_) << text;
  }

  std::string config(const std::string& action, const fs::path& run, int steps = kSteps) const {
    const std::string spikes =
        action == "none"
            ? "action: none"
            : "window: 16, threshold: 8, rewind_steps: 5, skip_batches: 0, action: " + action;
    std::string text =
        small_config(corpus_, run,
                     fmt::format("eval_every: 0, checkpoint_every: 4, steps: {}, spikes: {{{}}}",
                                 steps, spikes));
    return text.replace(text.find("warmup_steps"), 0, "schedule: constant, ");
  }
  std::string config(const std::string& action) const { return config(action, run_); }
  static std::vector<Json> metrics(const fs::path& run) {
    std::ifstream file(run / "metrics.jsonl");
    std::vector<Json> records;
    for (std::string line; std::getline(file, line);) records.push_back(Json::parse(line));
    return records;
  }
  // Back to step 24, which is the newest checkpoint 5 or more steps before step 30.
  static void expect_rewound(const fs::path& run) {
    const TrainerState state = saved_state(last_checkpoint(run));
    EXPECT_EQ(state.step, kSteps);
    EXPECT_EQ(state.samples, 6 * kSteps);
    EXPECT_EQ(state.skipped_samples, (std::vector<SkippedSamples>{{.at = 144, .count = 36}}));
    EXPECT_EQ(state.spikes.rewinds, 1);
    EXPECT_EQ(state.spikes.last_step, kSpike);
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(900));
  fs::path run_ = directory_ / "run";
};

TEST_F(SpikedRun, GoesBackAndLeavesOutTheData) {
  const CapturedLog log;
  EXPECT_EQ(train_on_ranks(1, config("rewind")), RunOutcome::Finished);
  const std::vector<Json> records = metrics(run_);
  ASSERT_EQ(records.size(), static_cast<std::size_t>(kSteps + kSpike - 24));
  EXPECT_EQ(records[29].at("step"), 30);
  EXPECT_EQ(records[30].at("step"), 25);
  const double spike = records[29].at("loss");
  for (std::size_t i = 30; i < records.size(); ++i) EXPECT_LT(records[i].at("loss"), spike - 1);
  expect_rewound(run_);
  // kintsugi data where reads this: step 25 has the samples from position 180 on.
  const LineageStage stage = lineage_of(parse_run_config(config("rewind"), "test.yaml")).back();
  EXPECT_EQ(data_position(stage.skipped, 6 * 23), 138);
  EXPECT_EQ(data_position(stage.skipped, 6 * 24), 180);
  EXPECT_THAT(log.warnings(), AllOf(HasSubstr("step 30: the loss"), HasSubstr("step-00000024"),
                                    HasSubstr("leaving out samples 144 to 179"),
                                    HasSubstr("rewind 1 of at most 3")));
}

// Killed before the spike; after the rewind and before a save; and after a save.
TEST_F(SpikedRun, IsTheSameAfterAKillAtAnyTime) {
  const CapturedLog log;
  train_on_ranks(1, config("rewind"));
  const fs::path before = directory_ / "before", after = directory_ / "after",
                 later = directory_ / "later";
  train_on_ranks(1, config("rewind", before, 27));
  train_on_ranks(1, config("rewind", before));
  expect_same_checkpoint(last_checkpoint(before), last_checkpoint(run_));

  train_on_ranks(1, config("rewind", after, 28));
  mark_branches({after / "checkpoints", "step-00000024"});  // what a rewind has done before a kill
  train_on_ranks(1, config("rewind", after));
  expect_same_checkpoint(last_checkpoint(after), last_checkpoint(run_));

  fs::copy(run_, later, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  point_latest_to({later / "checkpoints", "step-00000032"});
  train_on_ranks(1, config("rewind", later));
  expect_same_checkpoint(last_checkpoint(later), last_checkpoint(run_));
}

TEST_F(SpikedRun, EveryLayoutDecidesAlike) {
  const CapturedLog log;
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, std::string>>{{3, "layout={zero: 1}"},
                                                {2, "layout={tp: 2}"},
                                                {3, "layout={zero: 3}"},
                                                {2, "layout={pp: 2}"}}) {
    SCOPED_TRACE(layout);
    fs::remove_all(run_);
    EXPECT_EQ(train_on_ranks(ranks, config("rewind"), {layout}), RunOutcome::Finished);
    expect_rewound(run_);
  }
}

TEST_F(SpikedRun, WarnsOrStops) {
  {
    const CapturedLog log;
    EXPECT_EQ(train_on_ranks(1, config("warn")), RunOutcome::Finished);
    EXPECT_THAT(log.warnings(), AllOf(HasSubstr("step 30: the loss"), HasSubstr("train.spikes")));
    EXPECT_EQ(metrics(run_).size(), static_cast<std::size_t>(kSteps));
  }
  fs::remove_all(run_);
  const CapturedLog log;
  EXPECT_THROW(train_on_ranks(1, config("stop")), Diverged);
  EXPECT_EQ(metrics(run_).size(), static_cast<std::size_t>(kSpike));
  const Json status = Json::parse(read_text_file(run_ / "status.json"));
  EXPECT_EQ(status.at("state"), "diverged");
  EXPECT_EQ(status.at("exit_code"), 3);
  EXPECT_THAT(status.at("message").get<std::string>(), HasSubstr("robust deviations above"));
}

TEST_F(SpikedRun, EndsIfThereIsNoCheckpointToGoBackTo) {
  const CapturedLog log;
  EXPECT_THROW(train_on_ranks(1, config("rewind"), {"train.spikes.rewind_steps=29"}), Diverged);
  EXPECT_THAT(log.warnings(), HasSubstr("no healthy checkpoint 29 or more steps before step 30"));
}

// Calls `act` when step 29 is logged, so before step 30.
class BeforeTheSpike {
 public:
  explicit BeforeTheSpike(std::function<void()> act) {
    redirect_log([act = std::move(act)](LogLevel, std::string_view message) {
      if (message.find("step     29/60") != std::string_view::npos) act();
    });
  }
  ~BeforeTheSpike() { redirect_log({}); }
};

void flip_byte(const fs::path& file) {
  std::string content = read_text_file(file);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 4);
  write_file_atomically(file, content);
}

TEST_F(SpikedRun, AStopInItsStepIsSavedAfterTheRewind) {
  {
    const CapturedLog log;
    train_on_ranks(1, config("rewind"));
  }
  const fs::path stopped = directory_ / "stopped";
  {
    const BeforeTheSpike asks([] { request_stop("test"); });
    EXPECT_EQ(train_on_ranks(1, config("rewind", stopped), {"train.log_every=1"}),
              RunOutcome::Stopped);
  }
  EXPECT_EQ(metrics(stopped).size(), static_cast<std::size_t>(kSpike));
  const TrainerState state = saved_state(last_checkpoint(stopped));
  EXPECT_EQ(state.step, 24);
  EXPECT_EQ(state.skipped_samples, (std::vector<SkippedSamples>{{.at = 144, .count = 36}}));
  const std::vector<Ancestor> ancestors = ancestors_after(last_checkpoint(stopped));
  ASSERT_EQ(ancestors.size(), 6u);
  EXPECT_EQ(ancestors[4].name, "step-00000020");
  const CapturedLog log;
  EXPECT_EQ(train_on_ranks(1, config("rewind", stopped)), RunOutcome::Finished);
  expect_same_checkpoint(last_checkpoint(stopped), last_checkpoint(run_));
}

TEST_F(SpikedRun, GoesBackFurtherIfTheCheckpointIsDamaged) {
  const fs::path folder = run_ / "checkpoints";
  for (const auto& [ranks, layout] :
       std::vector<std::pair<int, std::string>>{{1, "layout={}"}, {3, "layout={zero: 3}"}}) {
    SCOPED_TRACE(layout);
    fs::remove_all(run_);
    {
      const BeforeTheSpike damages([&] {
        flip_byte(folder / "step-00000024/model.safetensors");
        flip_byte(folder / "step-00000020/trainer.json");
      });
      EXPECT_EQ(train_on_ranks(ranks, config("rewind"), {"train.log_every=1", layout}),
                RunOutcome::Finished);
    }
    EXPECT_TRUE(fs::exists(folder / "step-00000024.damaged"));
    const TrainerState state = saved_state(last_checkpoint(run_));
    EXPECT_EQ(state.step, kSteps);
    EXPECT_EQ(state.skipped_samples, (std::vector<SkippedSamples>{{.at = 96, .count = 84}}));
  }
}

TEST_F(SpikedRun, EndsIfAllCheckpointsAreDamaged) {
  const BeforeTheSpike damages([&] {
    for (const CheckpointPaths& one : list_checkpoints(run_ / "checkpoints"))
      flip_byte(one.model() / "model.safetensors");
  });
  EXPECT_THROW(train_on_ranks(1, config("rewind"), {"train.log_every=1"}), Diverged);
}

// Copies in /dev/shm of a run that diverged in step 30.
class SpikedRunWithCopies : public SpikedRun {
 protected:
  ~SpikedRunWithCopies() override { fs::remove_all(copies()); }
  fs::path copies() const {
    return fs::path("/dev/shm") / fmt::format("kintsugi-{}-{}", getuid(),
                                              hex64(hash64(fs::weakly_canonical(run_).string())));
  }
  std::string log_of_diverged_run() const {
    const CapturedLog log;
    EXPECT_THROW(train_on_ranks(1, config("stop"), with_copies_), Diverged);
    EXPECT_TRUE(fs::exists(copies()));
    return log.text();
  }

  const std::vector<std::string> with_copies_ = {"train.memory_copy_every=1", "train.log_every=1"};
};

TEST_F(SpikedRunWithCopies, ARollbackByTheUserCountsMoreThanCopies) {
  log_of_diverged_run();
  EXPECT_THAT(log_of_diverged_run(), HasSubstr("continuing from the copy in memory of step 29"));
  const CheckpointPaths back{run_ / "checkpoints", "step-00000020"};
  point_latest_to(back);
  EXPECT_THAT(log_of_diverged_run(), HasSubstr("step-00000020 (step 20)"));
}

// The process fails when it is in step 30 again, five steps after its rewind.
TEST_F(SpikedRunWithCopies, AFailureAfterARewindDoesNotChangeTheResult) {
  const fs::path whole = directory_ / "whole";
  {
    const CapturedLog log;
    train_on_ranks(1, config("rewind", whole));
  }
  int times = 0;
  redirect_log([&](LogLevel, std::string_view message) {
    if (message.find("step     30/60") != std::string_view::npos && ++times == 1)
      failure("for the test");
  });
  EXPECT_THROW(train_on_ranks(1, config("rewind"), with_copies_), Failure);
  redirect_log({});
  EXPECT_EQ(metrics(run_).size(), static_cast<std::size_t>(kSpike + 6));
  EXPECT_TRUE(fs::exists(copies()));
  const CapturedLog log;
  EXPECT_EQ(train_on_ranks(1, config("rewind"), with_copies_), RunOutcome::Finished);
  expect_same_checkpoint(last_checkpoint(run_), last_checkpoint(whole));
  EXPECT_FALSE(fs::exists(copies()));
}

TEST_F(SpikedRunWithCopies, AStopSavesThemAndLeavesNothing) {
  log_of_diverged_run();
  std::ofstream(run_ / "stop");  // before the first step
  {
    const CapturedLog log;
    EXPECT_EQ(train_on_ranks(1, config("stop"), with_copies_), RunOutcome::Stopped);
  }
  EXPECT_FALSE(fs::exists(copies()));
  EXPECT_EQ(saved_state(last_checkpoint(run_)).step, 29);
  fs::remove_all(run_);
  const BeforeTheSpike asks([] { request_stop("test"); });
  EXPECT_EQ(train_on_ranks(1, config("warn"), with_copies_), RunOutcome::Stopped);
  EXPECT_FALSE(fs::exists(copies()));
}

TEST_F(SpikedRun, ImpossibleSettingsAreRefused) {
  const auto refused = [&](const std::string& action, const std::string& set) {
    return user_error_of([&] { parse_run_config(config(action), "test.yaml", {set}); });
  };
  EXPECT_THAT(refused("rewind", "train.checkpoint_every=0"), HasSubstr("needs checkpoints"));
  EXPECT_THAT(refused("rewind", "train.keep_checkpoints=2"), HasSubstr("keep 3"));
  EXPECT_THAT(refused("rewind", "data.max_epochs=4"), HasSubstr("max_epochs"));
  EXPECT_THAT(refused("none", "train.spikes.window=7"), HasSubstr("action is none"));
  EXPECT_THAT(refused("none", "train.spikes.action=skip"), HasSubstr("warn"));
}

}  // namespace
}  // namespace kintsugi
