// The goodput ledger of real runs, and the report that is made of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "report/run_report.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/rank_trainers.h"
#include "support/small_run.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class GoodputOfRuns : public testing::Test {
 protected:
  void train(const std::string& steps, const std::string& more = "checkpoint_every: 5") {
    const CapturedLog log;
    train_on_ranks(1, small_config(corpus_, run_, "eval_every: 4, steps: " + steps + ", " + more));
  }
  Goodput goodput() const {
    Goodput all;
    all.add(read_goodput(run_ / "goodput.jsonl"));
    return all;
  }
  nlohmann::json status() const {
    return nlohmann::json::parse(read_text_file(run_ / "status.json"));
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  fs::path run_ = directory_ / "run";
};

TEST_F(GoodputOfRuns, StepsAreChargedWithTheirTimes) {
  train("8");
  double steps = 0;
  std::ifstream metrics(run_ / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);)
    steps += nlohmann::json::parse(line).at("step_time_s").get<double>();
  const Goodput all = goodput();
  ASSERT_EQ(all.attempts().size(), 1u);
  const Attempt& one = all.attempts()[0];
  EXPECT_NEAR(one.seconds.productive, steps, 1e-9);
  EXPECT_GT(one.seconds.checkpoint, 0);
  EXPECT_GT(one.seconds.validation, 0);
  EXPECT_GT(one.seconds.startup, 0);
  EXPECT_EQ(one.seconds.recomputed + one.seconds.waiting + one.seconds.down, 0);
  EXPECT_NEAR(one.seconds.total(), one.last_s - one.launched_s, 1e-6);
  EXPECT_EQ(status().at("attempt"), 1);
  EXPECT_NEAR(status().at("goodput").at("productive_s"), steps, 1e-9);
  EXPECT_NEAR(status().at("goodput").at("fraction"), one.seconds.fraction(), 1e-9);
}

// As a kill after step 8 leaves it: without the end, with half a line, and without the checkpoint
// of step 8.
TEST_F(GoodputOfRuns, AKilledRunDoesStepsAgain) {
  train("8");
  const double first_life = goodput().seconds().total();
  const fs::path ledger = run_ / "goodput.jsonl";
  const std::string text = read_text_file(ledger);
  const std::string start = text.substr(0, text.find('\n') + 1);
  std::ofstream(ledger) << start << "{\"event\":\"progr";
  remove_checkpoint({run_ / "checkpoints", "step-00000008"});
  fs::remove(run_ / "checkpoints/latest");
  train("12");
  const Goodput all = goodput();
  ASSERT_EQ(all.attempts().size(), 2u);
  EXPECT_EQ(all.attempts()[0].state, "lost");
  EXPECT_EQ(all.attempts()[0].last_step, 8);
  EXPECT_EQ(all.attempts()[1].first_step, 5);
  double again = 0, fresh = 0;
  std::ifstream metrics(run_ / "metrics.jsonl");
  int number = 0;
  for (std::string line; std::getline(metrics, line); ++number) {
    if (number < 8) continue;
    const auto record = nlohmann::json::parse(line);
    (record.at("step") <= 8 ? again : fresh) += record.at("step_time_s").get<double>();
  }
  EXPECT_NEAR(all.attempts()[1].seconds.recomputed, again, 1e-9);
  EXPECT_NEAR(all.attempts()[1].seconds.productive, fresh, 1e-9);
  // The last sign of life is the last step, so what followed it is down time.
  EXPECT_LE(all.attempts()[0].seconds.total(), first_life);
  EXPECT_NEAR(all.seconds().total(), all.attempts()[1].last_s - all.attempts()[0].launched_s, 1e-6);
}

TEST_F(GoodputOfRuns, TheQueueIsReadFromTheDescriptionOfTheJob) {
  EXPECT_EQ(submission_time(run_), std::nullopt);
  fs::create_directories(run_ / "launch");
  std::ofstream(run_ / "launch/job.json") << "{\"submitted_s\": 1000}";
  EXPECT_EQ(submission_time(run_), 1000);
  std::ofstream(run_ / "launch/job.json") << "{\"submitted_s\": []";
  EXPECT_EQ(submission_time(run_), std::nullopt);
}

TEST_F(GoodputOfRuns, AReportShowsHowEveryAttemptEnded) {
  request_stop("supervisor lost");
  train("9");
  train("9");
  const RunReport report = read_run(run_);
  EXPECT_THAT(report_text(report),
              AllOf(HasSubstr(": finished (exit code 0)"), HasSubstr("step 9 of 9"),
                    HasSubstr("steps 0 to 0  stopped (supervisor lost, exit code 75)"),
                    HasSubstr("steps 0 to 9  finished (exit code 0)"), HasSubstr("2 attempts"),
                    HasSubstr("step-00000009"), HasSubstr("(step 9)")));
  const auto json = report_json(report);
  EXPECT_EQ(json.at("attempts").size(), 2u);
  EXPECT_EQ(json.at("attempts")[0].at("exit_code"), 75);
  EXPECT_EQ(json.at("last_steps").size(), 5u);
  EXPECT_EQ(json.at("status").at("state"), "finished");
}

TEST_F(GoodputOfRuns, ADirectoryWithoutARunIsRefused) {
  EXPECT_THAT(user_error_of([&] { read_run(directory_ / "nothing"); }), HasSubstr("holds no run"));
  fs::create_directories(run_);
  std::ofstream(run_ / "status.json") << "{\"state\": ";
  EXPECT_THAT(user_error_of([&] { read_run(run_); }), HasSubstr("is not the status"));
  std::ofstream(run_ / "status.json") << "{\"state\": \"on\", \"loss\": \"a\", \"step\": []}";
  std::ofstream(run_ / "metrics.jsonl") << "7\n{\n{\"loss\": {}}\n";
  EXPECT_THAT(report_text(read_run(run_)), HasSubstr("loss unknown"));
}

}  // namespace
}  // namespace kintsugi
