// `mpirun -np N kintsugi train … --profile`, and what `kintsugi report --profile` makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "support/mpirun.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "support/trace_events.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class ProfileOnRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
    std::ofstream(directory_ / "corpus.txt") << small_corpus(300);
    std::ofstream(directory_ / "run.yaml") << small_config(
        (directory_ / "corpus.txt").string(), "run",
        "steps: 5, eval_every: 0, checkpoint_every: 0, precision: fp64", "threads: 1\n");
  }
  int train(int ranks, const std::string& arguments, const std::string& environment = "") const {
    const std::string command = fmt::format(
        "cd '{}' && rm -rf run && {} {} mpirun -np {} '{}' train run.yaml "
        "--set batch.global=8 --set batch.micro=1 {} > out 2> err < /dev/null",
        directory_.path().string(), environment, kOpenMpi, ranks, kintsugi_binary(), arguments);
    return exit_code(std::system(command.c_str()));
  }
  int report(const std::string& arguments) const {
    const std::string command =
        fmt::format("cd '{}' && '{}' report {} > out 2> err < /dev/null",
                    directory_.path().string(), kintsugi_binary(), arguments);
    return exit_code(std::system(command.c_str()));
  }
  static int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
  std::string content(const char* file) const {
    std::ifstream stream(directory_ / file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  json profile(const char* file = "profile.json") const { return json::parse(content(file)); }

  TemporaryDirectory directory_;
};

TEST_F(ProfileOnRanks, Zero3GathersOverlapWithCompute) {
  ASSERT_EQ(train(3, "--set batch.global=6 --set layout.zero=3 --profile=file=profile.json"), 0)
      << content("err");
  const json file = profile();
  const TraceEvents events(file);
  events.expect_nested();
  ASSERT_EQ(events.processes.size(), 3u);
  EXPECT_EQ(events.processes.at(2), "rank 2: tp 0 cp 0 dp 2 pp 0");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(events.names(rank, "host").count("step 3"), 1u);
    EXPECT_EQ(events.names(rank, "host").count("step 4"), 1u);
    EXPECT_EQ(events.names(rank, "host").count("step 5"), 0u);
    EXPECT_EQ(events.names(rank, "pipeline").count("backward 1"), 2u);
    EXPECT_GT(events.names(rank, "compute").count("attention_forward 1x4x24x8 causal"), 0u);
    EXPECT_GT(events.names(rank, "shard").count("all_gather"), 0u);
    EXPECT_GT(events.names(rank, "shard").count("reduce_scatter"), 0u);
    EXPECT_EQ(events.names(rank, "shard"), events.names(0, "shard"));
  }
  // A collective ends on no rank before all ranks have entered it.
  std::map<std::string, std::pair<double, double>> calls;  // last begin, first end
  for (int rank = 0; rank < 3; ++rank)
    for (const auto& event : events.lanes.at({rank, "shard"})) {
      EXPECT_GT(event.arguments.at("bytes").get<std::int64_t>(), 0);
      const auto at = calls.emplace(event.arguments.at("call"), std::pair{event.begin, event.end});
      auto& [begin, end] = at.first->second;
      begin = std::max(begin, event.begin);
      end = std::min(end, event.end);
    }
  EXPECT_EQ(calls.size(), events.lanes.at({0, "shard"}).size());
  for (const auto& [call, times] : calls) EXPECT_LE(times.first, times.second + 1) << call;
  const json& exposure = file.at("otherData").at("exposure");
  ASSERT_EQ(exposure.size(), 6u);  // two steps, three ranks
  for (const json& one : exposure) {
    EXPECT_LE(one.at("exposed_s").get<double>(), one.at("communication_s").get<double>());
    EXPECT_LE(one.at("waiting_s").get<double>(), one.at("exposed_s").get<double>());
    EXPECT_GT(one.at("compute_s").get<double>(), 0);
    EXPECT_GT(one.at("groups").at("shard").at("bytes").get<double>(), 0);
  }
  EXPECT_THAT(content("out"), HasSubstr("steps 3-4, mean of 3 ranks: compute "));
  EXPECT_THAT(content("out"), HasSubstr("profile.json"));
}

TEST_F(ProfileOnRanks, OneForwardOneBackwardIsWhatTheScheduleSays) {
  ASSERT_EQ(train(2,
                  "--set layout.pp=2 --set layout.schedule=1f1b --set batch.global=4 "
                  "--profile steps=2,file=profile.json"),
            0)
      << content("err");
  const TraceEvents events(profile());
  events.expect_nested();
  const auto actions = [&](int rank) {
    std::vector<std::string> names;
    for (const auto& event : events.lanes.at({rank, "pipeline"}))
      if (event.name != "optimizer" && event.name != "sum gradients") names.push_back(event.name);
    return names;
  };
  EXPECT_THAT(actions(0),
              testing::ElementsAre("forward 0", "forward 1", "backward 0", "forward 2",
                                   "backward 1", "forward 3", "backward 2", "backward 3"));
  EXPECT_THAT(actions(1),
              testing::ElementsAre("forward 0", "backward 0", "forward 1", "backward 1",
                                   "forward 2", "backward 2", "forward 3", "backward 3"));
  // Four activations forward, four gradients backward; more rows if receives overlap.
  const auto messages = [&](int rank, const std::string& lane) {
    std::size_t count = 0;
    for (const std::string& name : events.lanes_of(rank))
      if (name.starts_with(lane)) count += events.names(rank, name).size();
    return count;
  };
  EXPECT_EQ(messages(0, "pp > 1"), 4u);
  EXPECT_EQ(messages(0, "pp < 1"), 4u);
  EXPECT_EQ(messages(1, "pp > 0"), 4u);
  EXPECT_EQ(messages(1, "pp < 0"), 4u);
}

TEST_F(ProfileOnRanks, OnlyTheChosenRanksRecord) {
  ASSERT_EQ(train(3, "--set batch.global=6 --profile steps=2-3,ranks=1-2"), 0) << content("err");
  const json file = profile("run/profiles/steps-2-3.json");
  const TraceEvents events(file);
  ASSERT_EQ(events.processes.size(), 2u);
  EXPECT_EQ(events.processes.at(1), "rank 1: tp 0 cp 0 dp 1 pp 0");
  EXPECT_EQ(file.at("otherData").at("ranks"), 3);
  EXPECT_EQ(file.at("otherData").at("step_seconds").size(), 2u);  // of rank 0
  ASSERT_EQ(report("--profile run/profiles/steps-2-3.json --json"), 0) << content("err");
  const json analysis = json::parse(content("out"));
  ASSERT_EQ(analysis.at("ranks").size(), 2u);
  for (const json& rank : analysis.at("ranks")) {
    double sum = 0;
    for (const auto& [name, ms] : rank.at("categories").items()) sum += ms.get<double>();
    EXPECT_NEAR(sum, rank.at("step_ms").get<double>(), 1e-6);
  }
  // Two layers and two micro-batches per rank.
  for (const json& one : analysis.at("operations"))
    if (one.at("name") == "attention_forward 1x4x24x8 causal") {
      EXPECT_DOUBLE_EQ(one.at("calls").get<double>(), 4);
    }
  EXPECT_GT(analysis.at("communication").at("ms").get<double>(), 0);
  ASSERT_EQ(report("--profile run/profiles/steps-2-3.json --rank 2 --machine dgx-h100"), 0);
  EXPECT_THAT(content("out"), HasSubstr("steps 2-3 on 1 of 3 ranks"));
  EXPECT_THAT(content("out"), HasSubstr("memory-bound operations"));
  EXPECT_EQ(report("--profile run/profiles/steps-2-3.json --rank 0"), 2);
  EXPECT_THAT(content("err"), HasSubstr("does not have this rank; it has 1, 2"));
  ASSERT_EQ(report("--profile run --rank 2 --json"), 0) << "the newest one of a run directory";
  EXPECT_THAT(content("err"), HasSubstr("run/profiles/steps-2-3.json"));
}

// 300 calls of an operation instead of one are far beyond what other work can disturb.
TEST_F(ProfileOnRanks, TheDiffNamesTheSlowedOperation) {
  ASSERT_EQ(train(2, "--profile steps=3-4,file=before.json"), 0) << content("err");
  ASSERT_EQ(train(2, "--profile steps=3-4,file=after.json.gz",
                  "KINTSUGI_REPEAT_OPERATION=swiglu_forward:300"),
            0)
      << content("err");
  ASSERT_EQ(report("--profile after.json.gz --against before.json"), 0) << content("err");
  EXPECT_THAT(content("out"), testing::StartsWith("swiglu_forward got slower the most: +"));
  ASSERT_EQ(report("--profile before.json --against after.json.gz --json"), 0) << content("err");
  const json first = profile("out").at("diff").at("operations").at(0);
  EXPECT_EQ(first.at("name"), "swiglu_forward");
  EXPECT_EQ(first.at("change"), "faster");
  EXPECT_EQ(first.at("calls_before"), first.at("calls_after"));
}

// Steps are counted over all stages.
TEST_F(ProfileOnRanks, IsOfAnyStage) {
  std::ofstream(directory_ / "run.yaml")
      << small_config((directory_ / "corpus.txt").string(), "run",
                      "eval_every: 0, checkpoint_every: 0, precision: fp64",
                      "threads: 1\nstages:\n  - {name: short, steps: 2}\n"
                      "  - {name: long, steps: 3, data: {sequence_length: 48}}\n");
  ASSERT_EQ(train(2, "--profile steps=3-4"), 0) << content("err");
  const TraceEvents events(profile("run/profiles/steps-3-4.json"));
  EXPECT_EQ(events.names(1, "compute").count("attention_forward 1x4x48x8 causal"), 2u * 4 * 2);
  EXPECT_EQ(profile("run/profiles/steps-3-4.json").at("otherData").at("stage"), 1);
  ASSERT_EQ(report("--profile run/profiles/steps-3-4.json --machine dgx-h100"), 0)
      << content("err");
}

TEST_F(ProfileOnRanks, IsOffByDefault) {
  ASSERT_EQ(train(2, "--set layout.zero=1"), 0) << content("err");
  EXPECT_EQ(content("out").find("profile"), std::string::npos);
  EXPECT_FALSE(fs::exists(directory_ / "run" / "profiles"));
}

TEST_F(ProfileOnRanks, MistakesAreReportedBeforeTheRunBegins) {
  const auto expect_refused = [&](const std::string& arguments, const std::string& sentence,
                                  const std::string& environment = "") {
    EXPECT_EQ(train(2, arguments, environment), 2) << arguments;
    const std::string text = content("err");
    EXPECT_THAT(text, HasSubstr(sentence));
    EXPECT_EQ(text.find(sentence), text.rfind(sentence)) << text;
    EXPECT_FALSE(fs::exists(directory_ / "run"));
  };
  expect_refused("--profile file=none/x.json", "--profile file=none/x.json: there is no directory");
  expect_refused("--profile file=.", "--profile file=. is a directory");
  expect_refused("--profile steps=4-3", "--profile steps=4-3: give a step of the run");
  expect_refused("--profile steps=6-7", "--profile steps=6-7: the run has 5 steps");
  expect_refused("--profile ranks=2", "--profile ranks=2: the run has 2 ranks");
  expect_refused("--profile 3-4", "--profile 3-4: give steps=20-25");
  expect_refused("--profile", "only these operations can be repeated",
                 "KINTSUGI_REPEAT_OPERATION=adamw:2");
}

TEST_F(ProfileOnRanks, TheReportRefusesOtherFiles) {
  for (const char* arguments : {"--profile run.yaml", "--profile none.json", "--profile .",
                                "run --profile run.yaml", "--against run.yaml", "--rank 0", ""})
    EXPECT_EQ(report(arguments), 2) << arguments;
  EXPECT_EQ(content("out"), "");
  EXPECT_EQ(report("--profile run.yaml"), 2);
  EXPECT_THAT(content("err"), HasSubstr("run.yaml"));
}

}  // namespace
}  // namespace kintsugi
