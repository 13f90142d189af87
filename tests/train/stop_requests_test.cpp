// What stops a run early, and that a stopped run continues bit for bit.
#include "train/stop_requests.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/rank_trainers.h"
#include "support/same_checkpoint.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

// Sets an environment variable for the lifetime of the object.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(SecondInterruptTest, RunsItsCallbackAndEndsTheProcess) {
  const auto interrupt_twice = [](const std::function<void()>& callback) {
    const StopSignals signals;
    before_second_interrupt(callback);
    raise(SIGINT);
    raise(SIGINT);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  };
  EXPECT_EXIT(interrupt_twice([] { fmt::print(stderr, "restored"); }), testing::ExitedWithCode(130),
              "restored");
  EXPECT_EXIT(interrupt_twice({}), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(interrupt_twice([] {
                raise(SIGINT);  // the third one: the callback never ends
                std::this_thread::sleep_for(std::chrono::minutes(1));
              }),
              testing::ExitedWithCode(130), "");
}

TEST(WallTimeTest, LeavesOneSaveTwoStepsAndHalfAMinute) {
  WallTime time(1000, 0);
  EXPECT_EQ(time.margin_s(), 60 + 30);  // nothing is measured yet
  time.note_save(12);
  time.note_step(4);
  time.note_step(7);
  time.note_step(5);
  EXPECT_EQ(time.margin_s(), 12 + 2 * 7 + 30);
  EXPECT_FALSE(time.is_over(1000 - 56.5));
  EXPECT_TRUE(time.is_over(1000 - 56));
  time.note_save(3);  // the last save counts
  EXPECT_EQ(time.margin_s(), 3 + 2 * 7 + 30);
  for (int i = 0; i < 100; ++i) time.note_step(1);  // the slow steps are long ago
  EXPECT_EQ(time.margin_s(), 3 + 2 * 1 + 30);
}

// The last save waits for the one in the background.
TEST(WallTimeTest, CountsASaveInTheBackgroundThatIsUnderWay) {
  WallTime time(1000, 0);
  time.set_save_under_way(true);
  EXPECT_EQ(time.margin_s(), 60 + 60 + 30);  // nothing is measured yet
  time.note_save(20, true);
  time.set_save_under_way(false);
  EXPECT_EQ(time.margin_s(), 20 + 30);  // the best guess for one that training waits for
  time.set_save_under_way(true);
  EXPECT_EQ(time.margin_s(), 20 + 20 + 30);
  time.note_save(5);
  time.note_step(3);
  EXPECT_EQ(time.margin_s(), 20 + 5 + 2 * 3 + 30);
  time.set_save_under_way(false);
  EXPECT_EQ(time.margin_s(), 5 + 2 * 3 + 30);
}

TEST(WallTimeTest, AMarginMayBeGivenAndThereMayBeNoLimit) {
  WallTime fixed(100, 20);
  fixed.note_step(500);
  EXPECT_FALSE(fixed.is_over(79));
  EXPECT_TRUE(fixed.is_over(80));
  EXPECT_FALSE(WallTime().limited());
  EXPECT_FALSE(WallTime().is_over(1e18));
}

TEST(EndOfJob, IsTheEarliestLimit) {
  EXPECT_EQ(end_of_job(100, 0), std::nullopt);
  EXPECT_EQ(end_of_job(100, 50), 150);
  const Environment slurm("SLURM_JOB_END_TIME", "130");
  EXPECT_EQ(end_of_job(100, 0), 130);
  EXPECT_EQ(end_of_job(100, 50), 130);
  EXPECT_EQ(end_of_job(100, 20), 120);
  const Environment script("KINTSUGI_END_TIME", "170");  // the job script knows better
  EXPECT_EQ(end_of_job(100, 0), 170);
  const Environment wrong("KINTSUGI_END_TIME", "tomorrow");
  EXPECT_THAT(user_error_of([] { end_of_job(0, 0); }),
              AllOf(HasSubstr("KINTSUGI_END_TIME"), HasSubstr("'tomorrow'"), HasSubstr("unset")));
}

TEST(StopRequestsTest, TheFileIsCheckedOnceASecond) {
  const TemporaryDirectory directory;
  double now = 10;
  StopRequests stops({.file = directory / "stop", .clock = [&] { return now; }});
  EXPECT_EQ(stops.ask(), 0);
  directory.write("stop", "");
  now = 10.9;
  EXPECT_EQ(stops.ask(), 0);
  now = 11;
  stops.decide(stops.ask());
  EXPECT_EQ(stops.reason(), "stop file");
  EXPECT_THAT(stops.description(), HasSubstr((directory / "stop").string()));
  stops.consume_file();
  EXPECT_FALSE(fs::exists(directory / "stop"));
}

// Of ranks 1 and 2, which know nothing of the file and the time; 100,000 of them.
TEST(StopRequestsTest, AllRanksDecideAlikeFromTheSum) {
  const TemporaryDirectory directory;
  directory.write("stop", "");
  StopRequests file({.file = directory / "stop"}), time({.wall_time = WallTime(0, 1)});
  const auto reason_of = [](double sum) {
    StopRequests other;
    other.decide(sum);
    return other.reason();
  };
  EXPECT_EQ(reason_of(0), "");
  EXPECT_EQ(reason_of(file.ask()), "stop file");
  EXPECT_EQ(reason_of(time.ask()), "wall time");
  const double by_file = file.ask();
  const StopSignals signals;
  request_stop("supervisor lost");
  request_stop("too late");
  const double by_request = StopRequests().ask();
  EXPECT_EQ(reason_of(by_request), "supervisor lost");
  EXPECT_EQ(reason_of(100'000 * by_request + by_file), "supervisor lost");
  std::raise(SIGUSR1);
  const double by_signal = StopRequests().ask();
  EXPECT_EQ(reason_of(by_signal), "signal");
  EXPECT_EQ(reason_of(100'000 * by_signal), "signal");
  EXPECT_EQ(reason_of(by_signal + 3 * by_request + by_file), "signal");
}

class StoppedRun : public testing::Test {
 protected:
  // With a learning rate that does not depend on the number of steps.
  std::string config(const fs::path& run, const std::string& steps) const {
    std::string text =
        small_config(corpus_, run, "eval_every: 0, checkpoint_every: 0, steps: " + steps);
    return text.replace(text.find("warmup_steps"), 0, "schedule: constant, ");
  }
  Json status() const { return Json::parse(read_text_file(run_ / "status.json")); }
  // Calls `stop` once the run has done three steps, unless it ended before. Then expects a stopped
  // run that continues and ends as one that was not stopped.
  void expect_resumable(const std::string& reason, const std::function<void()>& stop,
                        const std::vector<std::string>& overrides = {}) {
    const CapturedLog log;
    std::atomic<bool> ended = false;
    std::thread asks([&] {
      while (!ended && steps_done() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!ended) stop();
    });
    EXPECT_EQ(train_on_ranks(1, config(run_, "1M"), overrides), RunOutcome::Stopped);
    ended = true;
    asks.join();
    const Json stopped = status();
    EXPECT_EQ(stopped.at("state"), "stopped");
    EXPECT_EQ(stopped.at("reason"), reason);
    EXPECT_EQ(stopped.at("exit_code"), 75);
    EXPECT_THAT(stopped.at("message").get<std::string>(), HasSubstr("stopped by"));
    const int step = stopped.at("step");
    EXPECT_EQ(saved_state(last_checkpoint(run_)).step, step);
    // Continue for ten steps, which no request interrupts.
    const std::string steps = std::to_string(step + 10);
    EXPECT_EQ(train_on_ranks(1, config(run_, steps)), RunOutcome::Finished);
    EXPECT_EQ(status().at("state"), "finished");
    EXPECT_EQ(status().at("exit_code"), 0);
    EXPECT_FALSE(status().contains("reason"));
    const fs::path whole = directory_ / "whole";
    train_on_ranks(1, config(whole, steps));
    expect_same_checkpoint(last_checkpoint(run_), last_checkpoint(whole));
  }
  int steps_done() const {
    std::ifstream file(run_ / "metrics.jsonl");
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  fs::path run_ = directory_ / "run";
};

TEST_F(StoppedRun, BySignal) {
  for (const int signal : {SIGHUP, SIGTERM}) {
    SCOPED_TRACE(signal);
    fs::remove_all(run_);
    fs::remove_all(directory_ / "whole");
    expect_resumable("signal", [&] { kill(getpid(), signal); });
  }
}

TEST_F(StoppedRun, ByTheStopFile) {
  expect_resumable("stop file", [&] { std::ofstream(run_ / "stop"); });
  EXPECT_FALSE(fs::exists(run_ / "stop"));
}

TEST_F(StoppedRun, ByRequest) {
  expect_resumable("supervisor lost", [] { request_stop("supervisor lost"); });
}

TEST_F(StoppedRun, ByWallTime) {
  // Half a second after the start.
  expect_resumable("wall time", [] {}, {"run.time_limit=100s", "run.stop_margin=99.5s"});
}

TEST_F(StoppedRun, AllRanksStopAfterTheSameStep) {
  const CapturedLog log;
  EXPECT_EQ(train_on_ranks(4, config(run_, "1M"), {"batch.global=8", "layout.tp=2"},
                           [&](Trainer&, int rank) {
                             if (rank != 0) return;
                             fs::create_directories(run_);
                             std::ofstream(run_ / "stop");
                           }),
            RunOutcome::Stopped);
  EXPECT_EQ(status().at("reason"), "stop file");
}

TEST_F(StoppedRun, AStopFileAtTheStartIsObeyedAndConsumed) {
  const CapturedLog log;
  fs::create_directories(run_);
  std::ofstream(run_ / "stop");
  EXPECT_EQ(train_on_ranks(1, config(run_, "5")), RunOutcome::Stopped);
  EXPECT_THAT(log.text(), HasSubstr("stopped by the stop file " + (run_ / "stop").string() +
                                    " after step 0; the same command continues"));
  EXPECT_FALSE(fs::exists(run_ / "stop"));
  EXPECT_EQ(train_on_ranks(1, config(run_, "5")), RunOutcome::Finished);
}

TEST_F(StoppedRun, TooLittleWallTimeIsReportedAtTheStart) {
  const CapturedLog log;
  EXPECT_EQ(train_on_ranks(1, config(run_, "5"), {"run.time_limit=80s"}), RunOutcome::Stopped);
  EXPECT_THAT(log.warnings(),
              AllOf(HasSubstr("stops without training"), HasSubstr("run.stop_margin")));
  EXPECT_EQ(steps_done(), 0);
}

TEST_F(StoppedRun, ALimitMustBeATime) {
  EXPECT_THAT(user_error_of([&] {
                parse_run_config(config(run_, "5"), "test.yaml", {"run.time_limit=soon"});
              }),
              AllOf(HasSubstr("run.time_limit"), HasSubstr("soon")));
}

}  // namespace
}  // namespace kintsugi
