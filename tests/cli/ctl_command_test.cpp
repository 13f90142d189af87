// kintsugi ctl: a run of two ranks is changed while it trains.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "support/campaign_files.h"
#include "support/mpirun.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class CtlCommand : public ProgramTest {
 protected:
  CtlCommand() { write_campaign_files(directory_); }

  static std::string train() {
    return std::string(kOpenMpi) +
           "mpirun -np 2 \"$kintsugi\" train base.yaml --set optimizer.schedule=constant --set "
           "train.eval_every=100000 --set threads=1 --set batch.micro=2 --set "
           "train.keep_checkpoints=0 ";
  }

  // The records of a run by their steps.
  std::map<std::int64_t, nlohmann::json> records(const std::string& run) {
    std::map<std::int64_t, nlohmann::json> found;
    std::istringstream lines(content_of(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      found[json["step"].get<std::int64_t>()] = json;
    }
    return found;
  }
  std::string refused(const std::string& arguments) {
    const Outcome outcome = run_kintsugi("ctl " + arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.error, StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
  void stop(const std::string& run) {
    run_in_shell("touch " + run + "/stop; for i in $(seq 1200); do [ -e " + run +
                 "/stop ] || [ -e " + run + "/.lock ] || break; sleep 0.05; done");
  }
};

// With verify_replicas_every, a run ends if one rank has changed a value at another step.
TEST_F(CtlCommand, SixteenRanksObeyAfterTheSameStep) {
  run_in_shell(
      std::string(kOpenMpi) +
      "mpirun -np 16 \"$kintsugi\" train base.yaml --set optimizer.schedule=constant --set "
      "threads=1 --set batch.global=16 --set batch.micro=1 --set train.keep_checkpoints=0 "
      "--set train.verify_replicas_every=1 --set train.steps=1000000 --set run.dir=a "
      ">a.txt 2>&1 &\n"
      "for i in $(seq 1200); do grep -q '\"step\":2,' a/metrics.jsonl 2>/dev/null && break; "
      "sleep 0.05; done");
  const Outcome changed = run_kintsugi("ctl a --set optimizer.lr=5e-2");
  std::int64_t step = 0;
  ASSERT_EQ(std::sscanf(changed.out.c_str(), "step %ld: optimizer.lr=5e-2", &step), 1)
      << changed.error << content_of("a.txt");
  const Outcome saved = run_kintsugi("ctl a --checkpoint");
  EXPECT_EQ(saved.code, 0) << saved.error << content_of("a.txt");
  stop("a");
  const auto found = records("a");
  ASSERT_GT(found.rbegin()->first, step);
  EXPECT_DOUBLE_EQ(found.at(step)["lr"].get<double>(), 1e-3);
  EXPECT_DOUBLE_EQ(found.at(step + 1)["lr"].get<double>(), 5e-2);
  EXPECT_THAT(content_of("a.txt"), testing::Not(HasSubstr("differ")));
}

// What is changed in a stage ends with it.
TEST_F(CtlCommand, AStageIsChangedAndStepsAreRecordedOnRequest) {
  directory_.write("stages.yaml",
                   std::regex_replace(content_of("base.yaml"), std::regex("steps: 4, "), "") +
                       "stages:\n  - {name: long, steps: 1000000}\n"
                       "  - {name: last, steps: 4}\n");
  const std::string train =
      "\"$kintsugi\" train stages.yaml --set optimizer.schedule=constant --set "
      "threads=1 --set run.dir=s ";
  const auto wait_for = [&](const char* step) {
    return fmt::format(
        "for i in $(seq 1200); do grep -q '\"step\":{},' s/metrics.jsonl 2>/dev/null "
        "&& break; sleep 0.05; done",
        step);
  };
  run_in_shell(train + "--profile on-request >s.txt 2>&1 &\n" + wait_for("5"));
  const Outcome changed = run_kintsugi("ctl s --set optimizer.lr=5e-4 --profile 2");
  ASSERT_EQ(changed.code, 0) << changed.error << content_of("s.txt");
  std::int64_t step = 0;
  ASSERT_EQ(
      std::sscanf(changed.out.c_str(), "step %ld: optimizer.lr=5e-4, profile of 2 steps", &step), 1)
      << changed.out;
  const std::string profile = fmt::format("s/profiles/steps-{}-{}.json", step + 1, step + 2);
  run_in_shell("for i in $(seq 200); do [ -e " + profile + " ] && break; sleep 0.05; done");
  EXPECT_TRUE(fs::exists(directory_ / profile));
  EXPECT_THAT(refused("s --profile 101"), HasSubstr("101"));
  stop("s");
  const std::string end =
      fmt::format("--set 'stages=[{{name: long, steps: {}}}, {{name: last, steps: 4}}]'",
                  records("s").rbegin()->first + 2);
  ASSERT_EQ(run_in_shell(train + end).code, 0) << content_of("error.txt");
  const auto found = records("s");
  const std::int64_t last = found.rbegin()->first;
  EXPECT_DOUBLE_EQ(found.at(step)["lr"].get<double>(), 1e-3);
  EXPECT_DOUBLE_EQ(found.at(last - 4)["lr"].get<double>(), 5e-4);
  EXPECT_DOUBLE_EQ(found.at(last - 3)["lr"].get<double>(), 1e-3);
}

// A request of a run that has died is not obeyed by the next process.
TEST_F(CtlCommand, ARequestEndsWithTheProcessThatWasAsked) {
  const std::string train = "\"$kintsugi\" train base.yaml --set threads=1 --set run.dir=r ";
  ASSERT_EQ(run_in_shell(train + "--set train.steps=2").code, 0) << content_of("error.txt");
  directory_.write("r/control.json", "{\"set\": {\"optimizer.lr\": \"5e-4\"}}");
  const Outcome again = run_in_shell(train + "--set train.steps=4");
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_THAT(again.error + again.out, HasSubstr("it was asked of a process that has ended"));
  EXPECT_FALSE(fs::exists(directory_ / "r/control.json"));
  EXPECT_FALSE(fs::exists(directory_ / "r/control.jsonl"));
}

TEST_F(CtlCommand, AllRanksObeyAfterTheSameStepAndAgainWhenTheRunIsResumed) {
  run_in_shell(
      train() +
      "--set train.steps=1000000 --set run.dir=a >a.txt 2>&1 &\n"
      "for i in $(seq 1200); do grep -q '\"step\":5,' a/metrics.jsonl 2>/dev/null && break; sleep "
      "0.05; done");
  const Outcome changed = run_kintsugi("ctl a --set optimizer.lr=5e-4 --checkpoint --evaluate");
  ASSERT_EQ(changed.code, 0) << changed.error << content_of("a.txt");
  const auto line = nlohmann::json::parse(content_of("a/control.jsonl"));
  const auto step = line["step"].get<std::int64_t>();
  EXPECT_EQ(changed.out, fmt::format("step {}: optimizer.lr=5e-4, checkpoint, evaluate\n", step));
  const Outcome saved = run_kintsugi("ctl a --checkpoint");
  std::int64_t last = 0;
  ASSERT_EQ(std::sscanf(saved.out.c_str(), "step %ld: checkpoint", &last), 1) << saved.error;
  ASSERT_GT(last, step);
  EXPECT_THAT(refused("a --set optimizer.lrr=1"),
              AllOf(HasSubstr("optimizer.lrr"), HasSubstr("did you mean 'optimizer.lr'")));
  EXPECT_THAT(refused("a --set optimizer.lr=-1"), HasSubstr("'-1' is no learning rate"));
  EXPECT_THAT(refused("a --set train.log_every=0"), HasSubstr("'0' is no number of steps"));
  EXPECT_THAT(refused("a"), HasSubstr("give --set, --checkpoint, --evaluate or --profile"));
  EXPECT_THAT(refused("a --profile 2"), HasSubstr("start it with --profile on-request"));
  // A hostile file changes nothing and is reported.
  for (const char* text : {"{\"set\": {\"optimizer.lr\": \"nan\"}}", "[[["}) {
    directory_.write("a/control.json", text);
    run_in_shell("for i in $(seq 100); do [ -e a/control.json ] || break; sleep 0.05; done");
    EXPECT_FALSE(fs::exists(directory_ / "a/control.json")) << text;
  }
  const std::string events = content_of("a/events.jsonl");
  EXPECT_THAT(events, AllOf(HasSubstr("\"control refused\""), HasSubstr("'nan'"),
                            HasSubstr("is no JSON object")));
  stop("a");
  EXPECT_THAT(refused("a --checkpoint"), HasSubstr("a does not run: it is stopped"));
  const auto before = records("a");
  EXPECT_DOUBLE_EQ(before.at(step)["lr"].get<double>(), 1e-3);
  EXPECT_DOUBLE_EQ(before.at(step + 1)["lr"].get<double>(), 5e-4);
  EXPECT_DOUBLE_EQ(before.rbegin()->second["lr"].get<double>(), 5e-4);
  EXPECT_TRUE(before.at(step)["valid_loss"].is_number());
  EXPECT_TRUE(fs::exists(directory_ / fmt::format("a/checkpoints/step-{:08}/config.json", step)));
  // A run that is told the same from the start does the same, also from an earlier checkpoint.
  fs::create_directories(directory_ / "b");
  directory_.write("b/control.jsonl", content_of("a/control.jsonl"));
  const std::string again = train() + "--set run.dir=b ";
  ASSERT_EQ(run_in_shell(again + fmt::format("--set train.steps={}", step - 1)).code, 0)
      << content_of("error.txt");
  ASSERT_EQ(run_in_shell(again + fmt::format("--set train.steps={}", last)).code, 0)
      << content_of("error.txt");
  const auto weights = [&](const std::string& run) {
    return content_of(fmt::format("{}/checkpoints/step-{:08}/model.safetensors", run, last));
  };
  EXPECT_FALSE(weights("a").empty());
  EXPECT_EQ(weights("a"), weights("b"));
  EXPECT_DOUBLE_EQ(records("b").at(step)["lr"].get<double>(), 1e-3);
  EXPECT_DOUBLE_EQ(records("b").at(step + 1)["lr"].get<double>(), 5e-4);
}

}  // namespace
}  // namespace kintsugi
