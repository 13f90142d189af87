// The supervisor with real ranks on this machine.
#include "launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "support/directory_contents.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/folder.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kSteps = 1000;

class SupervisorTest : public testing::Test {
 protected:
  JobDescription job(const std::string& name, const std::string& train = "") {
    const fs::path run = directory_ / name;
    fs::create_directories(run / "launch");
    const fs::path config = run / "launch/config.yaml";
    std::ofstream(config) << small_config(
        corpus_, run.string(),
        fmt::format("steps: {}, checkpoint_every: 25, eval_every: 0{}", kSteps, train),
        "device: cpu\nthreads: 1\n");
    return {.run_dir = run.string(),
            .config = config.string(),
            .program = kintsugi_binary(),
            .local = true};
  }
  static std::vector<Json> attempts(const JobDescription& job) {
    std::ifstream file(job.directory() / "attempts.jsonl");
    std::vector<Json> found;
    for (std::string line; std::getline(file, line);) found.push_back(Json::parse(line));
    return found;
  }
  static std::string weights(const JobDescription& job) {
    return read_text_file(fs::path(job.run_dir) / "checkpoints" / checkpoint_name(kSteps) /
                          "model.safetensors");
  }
  // The process that trains in the run's directory.
  static pid_t rank_of(const JobDescription& job) {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(entry.path() / "cmdline");
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      if (text.find(std::string("train") + '\0' + job.config) != std::string::npos)
        return std::stoi(name);
    }
    return 0;
  }
  static void wait_for_step(const JobDescription& job, int step) {
    for (int i = 0; i < 2000; ++i) {
      std::ifstream file(fs::path(job.run_dir) / "metrics.jsonl");
      int lines = 0;
      for (std::string line; std::getline(file, line);) ++lines;
      if (lines >= step) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Saves are written in the background: a step says nothing about them.
  static void wait_for_checkpoint(const JobDescription& job) {
    for (int i = 0; i < 4000 && list_checkpoints(fs::path(job.run_dir) / "checkpoints").empty();
         ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
};

TEST_F(SupervisorTest, StartsAKilledRunAgain) {
  const JobDescription whole = job("whole"), broken = job("broken");
  EXPECT_EQ(Supervisor(whole).run(), exit_code::kFinished);
  ASSERT_EQ(attempts(whole).size(), 1u);
  EXPECT_EQ(attempts(whole)[0].at("exit_code"), 0);

  std::future<int> code = std::async(std::launch::async, [&] { return Supervisor(broken).run(); });
  wait_for_checkpoint(broken);
  const pid_t rank = rank_of(broken);
  ASSERT_GT(rank, 0);
  kill(rank, SIGKILL);
  EXPECT_EQ(code.get(), exit_code::kFinished);
  const auto tried = attempts(broken);
  ASSERT_EQ(tried.size(), 2u);
  EXPECT_EQ(tried[0].at("exit_code"), exit_code::kFailure);
  EXPECT_GE(tried[0].at("saved").get<int>(), 25);
  EXPECT_GT(tried[1].at("first_step_s").get<double>(), 0);
  EXPECT_EQ(weights(broken), weights(whole));
}

TEST_F(SupervisorTest, AStoppedRankIsKilledAndStartedAgain) {
  const JobDescription whole = job("whole"), broken = job("broken");
  EXPECT_EQ(Supervisor(whole).run(), exit_code::kFinished);
  std::future<int> code =
      std::async(std::launch::async, [&] { return Supervisor(broken, {.silence_s = 3}).run(); });
  wait_for_step(broken, 40);
  kill(rank_of(broken), SIGSTOP);
  EXPECT_EQ(code.get(), exit_code::kFinished);
  const auto tried = attempts(broken);
  ASSERT_EQ(tried.size(), 2u);
  EXPECT_THAT(tried[0].at("text").get<std::string>(), HasSubstr("rank 0 gave no sign of life"));
  EXPECT_EQ(weights(broken), weights(whole));
}

TEST_F(SupervisorTest, AStartThatHangsIsGivenUpSoonerThanTheFirst) {
  JobDescription job = this->job("hangs");
  job.launcher = {"sh", "-c",
                  fmt::format("cd '{}'; echo >> starts; [ $(wc -l < starts) = 2 ] && exec sleep "
                              "1000; exec \"$0\" \"$@\"",
                              job.run_dir)};
  std::future<int> code = std::async(std::launch::async, [&] {
    return Supervisor(job, {.start = {.first_s = 900, .again_s = 4, .times_known = 1}}).run();
  });
  wait_for_checkpoint(job);
  kill(rank_of(job), SIGKILL);
  EXPECT_EQ(code.get(), exit_code::kFinished);
  const auto tried = attempts(job);
  ASSERT_EQ(tried.size(), 3u);
  EXPECT_GT(tried[0].at("reported_s").get<double>(), 0);
  EXPECT_TRUE(tried[1].at("reported_s").is_null());
  const Json state = Json::parse(read_text_file(job.directory() / "supervisor.json"));
  EXPECT_GT(state.at("reported_s").get<double>(), 0) << "for a supervisor that takes over";
  EXPECT_THAT(tried[1].at("text").get<std::string>(), HasSubstr("the ranks did not report within"));
}

TEST_F(SupervisorTest, MistakesAreNotTriedAgain) {
  JobDescription wrong = job("wrong", ", no_such_key: 1");
  EXPECT_EQ(Supervisor(wrong).run(), exit_code::kMistake);
  EXPECT_EQ(attempts(wrong).size(), 1u);
}

TEST_F(SupervisorTest, GivesUpWithoutProgress) {
  JobDescription dead = job("dead");
  dead.launcher = {"sh", "-c", "exit 9"};
  EXPECT_EQ(Supervisor(dead, {.limits = {.fruitless = 3, .first_pause_s = 0.01}}).run(),
            exit_code::kNoProgress);
  ASSERT_EQ(attempts(dead).size(), 3u);
  EXPECT_THAT(attempts(dead)[2].at("text").get<std::string>(), HasSubstr("exit code 9"));
}

TEST_F(SupervisorTest, ASignalStopsTheRunWithASavedState) {
  const JobDescription whole = job("whole"), broken = job("broken");
  EXPECT_EQ(Supervisor(whole).run(), exit_code::kFinished);
  std::future<int> code = std::async(std::launch::async, [&] { return Supervisor(broken).run(); });
  wait_for_step(broken, 40);
  kill(getpid(), SIGUSR1);
  EXPECT_EQ(code.get(), exit_code::kStopped);
  const auto tried = attempts(broken);
  ASSERT_EQ(tried.size(), 1u);
  EXPECT_EQ(tried[0].at("saved"), tried[0].at("step"));  // nothing is lost
  EXPECT_EQ(Supervisor(broken).run(), exit_code::kFinished);
  EXPECT_EQ(weights(broken), weights(whole));
}

}  // namespace
}  // namespace kintsugi
