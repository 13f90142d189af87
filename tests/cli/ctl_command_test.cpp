// kintsugi ctl: a run of two ranks is changed while it trains.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
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
  EXPECT_THAT(refused("a"), HasSubstr("give --set, --checkpoint or --evaluate"));
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
