// What a run writes beside its checkpoints, and what commands say of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/mpirun.h"
#include "support/program_test.h"
#include "support/sanitizers.h"
#include "support/small_run.h"
#include "support/synthetic_run.h"

namespace kintsugi {
namespace {

using RecordsJson = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class RunRecords : public ProgramTest {
 protected:
  void SetUp() override { directory_.write("corpus.txt", small_corpus(400)); }
  void write_config(const std::string& train, const std::string& rest = "") {
    directory_.write("run.yaml", small_config("corpus.txt", "run", train, rest));
  }
  RecordsJson json_of(const std::string& name) { return RecordsJson::parse(content_of(name)); }
  static std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.find(part) != std::string::npos) found.push_back(line);
    return found;
  }
  // Starts a command with a library that notes syncs and communicators.
  std::string calls_of(const std::string& launcher, const std::string& arguments) {
    const Outcome outcome = run_in_shell(
        fmt::format("{} env KINTSUGI_CALL_LOG=\"$PWD/calls.txt\" LD_PRELOAD='{}' \"$kintsugi\" {}",
                    launcher, fake_library("call_log"), arguments));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return content_of("calls.txt");
  }
};

// A sync may take as long as several steps while a checkpoint is written to the same disk.
TEST_F(RunRecords, AreNotSyncedInTheStepLoop) {
  KINTSUGI_SKIP_UNDER_SANITIZERS();  // they must be loaded before any other library
  write_config("steps: 60, checkpoint_every: 20, eval_every: 0",
               "energy: {root: ., node_w: 500, sample_s: 0.05}\n");
  const std::string calls = calls_of("", "train run.yaml --set run.prometheus=true");
  EXPECT_EQ(lines_with(calls, "status.json").size(), 1u) << "only its end";
  EXPECT_EQ(lines_with(calls, "metrics.prom").size(), 1u);
  EXPECT_EQ(lines_with(calls, "/energy.json").size(), 1u);
  EXPECT_GE(lines_with(calls, "checkpoints/").size(), 3u) << "checkpoints are synced";
}

TEST_F(RunRecords, EveryCommunicatorIsFreed) {
  KINTSUGI_SKIP_UNDER_SANITIZERS();
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
  write_config("steps: 2, eval_every: 0", "energy: {enabled: false}\n");
  const std::string calls = calls_of(kOpenMpi + std::string("mpirun -np 2"),
                                     "train run.yaml --set batch.global=4 --set layout.zero=1");
  const std::size_t made = lines_with(calls, "MPI_Comm_split").size();
  EXPECT_GT(made, 4u);
  EXPECT_EQ(lines_with(calls, "MPI_Comm_free").size(), made);
}

// A branch has used no energy for the tokens of the run that it continues.
TEST_F(RunRecords, TheEnergyOfABranchIsDividedByItsOwnTokens) {
  write_config("steps: 60, eval_every: 0", "energy: {root: ., node_w: 500, sample_s: 0.05}\n");
  ASSERT_EQ(run_kintsugi("train run.yaml").code, 0);
  ASSERT_EQ(run_kintsugi("train run.yaml --set run.dir=branch --set run.from=run --set "
                         "train.steps=10 --set optimizer.warmup_steps=0")
                .code,
            0);
  const RecordsJson energy = json_of("branch/energy.json");
  const RecordsJson& node = energy["levels"]["node"];
  EXPECT_EQ(energy["steps"], 10);
  EXPECT_EQ(energy["tokens"], 10 * 6 * 24);
  const double joules = node["joules"], per_token = joules / (10 * 6 * 24);
  EXPECT_NEAR(node["joules_per_token"].get<double>(), per_token, 1e-6 * per_token);
  EXPECT_NEAR(node["joules_per_step"].get<double>(), joules / 10, 1e-6 * joules);
  // kintsugi report, and what the dashboard is given.
  ASSERT_EQ(run_kintsugi("report branch --output report.json").code, 0);
  const double reported = json_of("report.json")[0]["summary"]["j_per_token"];
  EXPECT_NEAR(reported, per_token, 1e-3 * per_token);
  ASSERT_EQ(run_kintsugi("report branch --output report.html").code, 0);
  const std::string page = content_of("report.html"), key = "\"j_per_token\":";
  double most = 0;
  for (std::size_t at = 0; (at = page.find(key, at)) != std::string::npos; at += key.size()) {
    if (std::isdigit(static_cast<unsigned char>(page[at + key.size()])) == 0) continue;
    most = std::stod(page.substr(at + key.size(), 20));
    EXPECT_NEAR(most, per_token, 1e-2 * per_token);
  }
  EXPECT_GT(most, 0);
}

// energy.json of a running attempt has a part of its energy already.
TEST_F(RunRecords, TheEnergyOfARunningAttemptIsCountedOnce) {
  write_synthetic_run(directory_ / "run", {.steps = 20, .total_steps = 100, .state = "running"});
  const auto record = [](int step, double joules) {
    return fmt::format(R"({{"step":{},"tokens":{},"loss":2,"step_time_s":0.5,"tokens_per_s":100,)"
                       R"("energy_j":5,"energy_scope":"node","energy_since_launch":)"
                       R"({{"node":{{"j":{},"covered_s":10}}}}}})"
                       "\n",
                       step, 1000 * step, joules);
  };
  directory_.write("run/metrics.jsonl", record(20, 150));
  const auto written = [](const std::string& attempts) {
    return fmt::format(R"({{"levels":{{"node":{{"joules":400,"joules_per_token":0.02,)"
                       R"("time_measured":1}}}},"attempts":[{}]}})",
                       attempts);
  };
  const std::string first = R"({"state":"stopped","joules":{"node":300}})";
  const std::string second = R"({"state":"running","joules":{"node":100}})";
  const auto energy = [&](const std::string& text, int attempt) {
    directory_.write("run/energy.json", text);
    std::string status = synthetic_status({.steps = 20, .total_steps = 100, .state = "running"});
    const std::string key = R"("attempt":1)";
    status.replace(status.find(key), key.size(), fmt::format("\"attempt\":{}", attempt));
    directory_.write("run/status.json", status);
    EXPECT_EQ(run_kintsugi("report run --output report.json --overwrite").code, 0);
    return json_of("report.json")[0]["summary"]["energy_j"].get<double>();
  };
  EXPECT_DOUBLE_EQ(energy(written(first + "," + second), 2), 300 + 150) << "after a save";
  EXPECT_DOUBLE_EQ(energy(written(first + "," + second), 3), 400 + 150)
      << "of an attempt that was killed";
}

TEST_F(RunRecords, LastLossesAreThoseOfDifferentSteps) {
  write_synthetic_run(directory_ / "run", {.steps = 12, .total_steps = 12});
  std::string metrics;
  for (const int k : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 9, 10, 11, 10, 11, 12})
    metrics += synthetic_record(k);
  directory_.write("run/metrics.jsonl", metrics);
  const Outcome report = run_kintsugi("report run");
  ASSERT_EQ(report.code, 0) << report.error;
  const auto lines = lines_with(report.out, "last losses:");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("(step 8) "), HasSubstr("(step 9) "),
                              HasSubstr("(step 10) "), HasSubstr("(step 11) ")));
  EXPECT_TRUE(lines[0].ends_with("(step 12)")) << lines[0];
}

TEST_F(RunRecords, WatchListsRunningRunsFirstAndSaysHowManyDoNotFit) {
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"})
    write_synthetic_run(directory_ / "runs" / name, {});
  write_synthetic_run(directory_ / "runs/z", {.steps = 20, .total_steps = 100, .state = "running"});
  const Outcome watch = run_kintsugi("watch runs --once");
  ASSERT_EQ(watch.code, 0) << watch.error;
  EXPECT_THAT(watch.out, StartsWith("z  running"));
  EXPECT_EQ(lines_with(watch.out, " more").size(), 1u);
  const std::size_t listed = lines_with(watch.out, "  finished  step ").size() +
                             lines_with(watch.out, "  running  step ").size();
  EXPECT_THAT(watch.out, HasSubstr(fmt::format("+{} more\n", 13 - listed)));
}

TEST_F(RunRecords, WatchMarksASinglePoint) {
  write_synthetic_run(directory_ / "run", {.steps = 10, .total_steps = 100, .state = "running"});
  directory_.write("run/metrics.jsonl", synthetic_record(1));
  const Outcome watch = run_kintsugi("watch run --once");
  ASSERT_EQ(watch.code, 0) << watch.error;
  EXPECT_EQ(lines_with(watch.out, "●").size(), 1u) << watch.out;
  EXPECT_EQ(lines_with(watch.out, "step 1").size(), 2u) << "the progress, and below the point";
}

TEST_F(RunRecords, EnergyWithoutMetersIsOneLine) {
  write_config("steps: 2, eval_every: 0", "energy: {root: .}\n");
  const Outcome outcome = run_kintsugi("train run.yaml");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("\nEnergy: not measured on this node: "));
  EXPECT_EQ(lines_with(outcome.out, "not measured").size(), 1u) << outcome.out;
  EXPECT_THAT(outcome.out, Not(HasSubstr("no prediction")));
  ASSERT_EQ(run_kintsugi("report run --output report.md").code, 0);
  EXPECT_EQ(lines_with(content_of("report.md"), "not measured").size(), 1u);
}

// With the 60 s that are assumed for an unknown save, no time would be left for a step.
TEST_F(RunRecords, ATimeLimitUsesTheTimeOfEarlierSaves) {
  write_config("steps: 4, eval_every: 0", "energy: {enabled: false}\n");
  ASSERT_EQ(run_kintsugi("train run.yaml").code, 0);
  const Outcome outcome =
      run_kintsugi("train run.yaml --set train.steps=8 --set run.time_limit=85s");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("step      8/8"));
}

TEST_F(RunRecords, LineBreaksOfSamplesStayVisibleOnOneLine) {
  write_config("steps: 2, eval_every: 0, samples: {prompts: [\"the\\nroad\"], tokens: 2}",
               "energy: {enabled: false}\n");
  const Outcome outcome = run_kintsugi("train run.yaml");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("the first: the\\nroad"));
}

// train --check.
class CheckedRun : public RunRecords {
 protected:
  // Without their numbers: times differ.
  static std::vector<std::string> warnings(const Outcome& outcome) {
    std::vector<std::string> lines = lines_with(outcome.error, "warning: ");
    for (std::string& line : lines)
      std::erase_if(line, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    return lines;
  }
  // Checks a run, starts it, and compares what both warn of.
  void expect_same_warnings(const std::string& arguments, const std::string& part) {
    const Outcome check = run_kintsugi("train run.yaml --check " + arguments);
    EXPECT_EQ(check.code, 0) << check.error;
    const Outcome start = run_kintsugi("train run.yaml " + arguments);
    EXPECT_EQ(warnings(check), warnings(start)) << arguments;
    EXPECT_THAT(start.error, HasSubstr(part));
  }
};

TEST_F(CheckedRun, WarnsOfEverythingThatAStartWould) {
  write_config("steps: 30, checkpoint_every: 5, eval_every: 0", "energy: {root: .}\n");
  EXPECT_EQ(run_kintsugi("train run.yaml --set train.steps=10").code, 0);
  // The rate of the next step jumps.
  expect_same_warnings("--set train.steps=20 --set optimizer.lr=4e-2", "learning rate");
  // Nothing says which data the run was started on.
  std::filesystem::remove(directory_ / "run/data.json");
  expect_same_warnings("--set train.steps=25 --set optimizer.lr=4e-2", "data.json");
  // `latest` is gone.
  std::filesystem::remove(directory_ / "run/checkpoints/latest");
  expect_same_warnings("--set train.steps=28 --set optimizer.lr=4e-2", "latest");
  // No time is left.
  expect_same_warnings("--set optimizer.lr=4e-2 --set run.time_limit=1s", "wall time");
}

TEST_F(CheckedRun, RefusesWhatAStartWouldAndChangesNothing) {
  write_config("steps: 4, checkpoint_every: 2, eval_every: 0", "energy: {enabled: false}\n");
  ASSERT_EQ(run_kintsugi("train run.yaml").code, 0);
  const std::string before = run_in_shell("find run -type f | sort | xargs cat | md5sum").out;
  const Outcome check = run_kintsugi("train run.yaml --check --set run.seed=4");
  EXPECT_EQ(check.code, 2);
  EXPECT_THAT(check.error, HasSubstr("was started with seed 3"));
  EXPECT_EQ(run_kintsugi("train run.yaml --check --set train.steps=8").code, 0);
  EXPECT_EQ(run_in_shell("find run -type f | sort | xargs cat | md5sum").out, before);
}

}  // namespace
}  // namespace kintsugi
