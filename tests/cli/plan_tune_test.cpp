// kintsugi plan tune as a user runs it, with real jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "launch/child_session.h"
#include "plan/search/csv.h"
#include "plan/search/point_search.h"
#include "support/paths.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// A process that has ended may still be listed as a zombie.
bool alive(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && text.size() > end + 2 && text[end + 2] != 'Z';
}

void wait_for(const fs::path& path) {
  for (int i = 0; i < 3000 && !(fs::exists(path) && fs::file_size(path) > 0); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

class PlanTune : public PlanCommandTest {
 protected:
  void SetUp() override {
    if (!built_with_dlib()) GTEST_SKIP() << "built without dlib";
    std::ofstream(directory_ / "corpus.txt") << small_corpus(600);
    std::ofstream(directory_ / "run.yaml")
        << small_config("corpus.txt", "run", "steps: 100, precision: fp32",
                        "device: cpu\nthreads: 1\nlayout: auto\n");
    std::ofstream(directory_ / "desk.yaml") << "name: desk\nnodes: 1\nnode: {gpus: 2, link_gb_s: "
                                               "5}\ngpu: {bf16_tflops: 0.1, fp32_tflops: 0.1, "
                                               "memory_gb: 4, memory_gb_s: 20, tdp_w: 20}\n";
  }
  std::vector<std::string> lines_of(const std::string& name) {
    std::ifstream file(directory_ / name);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  void expect_dead(const std::string& file, std::size_t count) {
    const auto pids = lines_of(file);
    EXPECT_EQ(pids.size(), count);
    for (const std::string& pid : pids) EXPECT_FALSE(alive(pid)) << pid;
  }

  const std::string tune_ = "tune run.yaml --machine desk.yaml --gpus ";
};

TEST_F(PlanTune, MeasuresContinuesAndEmitsTheBest) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
  const std::string command =
      tune_ +
      "2 --within 50 --log trials.csv --emit best.yaml --launch 'echo {trial} of {ranks} >> "
      "started; OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 "
      "OMPI_MCA_btl_vader_single_copy_mechanism=none mpirun -np {ranks}' --set batch.global=8 "
      "--steps 4 --trials ";
  const Outcome first = run(command + "3");
  ASSERT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.out, AllOf(HasSubstr("3 trials, 0 failed"), HasSubstr("measured")));
  const Outcome second = run(command + "7 --at-once 2 --overwrite");
  ASSERT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(second.error, AllOf(HasSubstr("3 trials are known"), HasSubstr("trial 7/7"),
                                  ContainsRegex("predicted [0-9.]+ ?[kM]? ± [0-9x.]+"),
                                  Not(HasSubstr("trial 3/7"))));
  EXPECT_EQ(lines_of("started").size(), 7u);
  EXPECT_THAT(lines_of("started"), testing::Contains("7 of 2"));

  const CsvTable table(content_of("trials.csv"), "trials.csv");
  ASSERT_EQ(table.rows(), 7u);
  std::size_t best = 0;
  std::set<std::string> layouts;
  for (std::size_t row = 0; row < 7; ++row) {
    EXPECT_EQ(table.at(row, "failure"), "");
    if (table.number(row, "tokens_per_s") > table.number(best, "tokens_per_s")) best = row;
    std::string layout;
    for (const char* column : {"tp", "cp", "pp", "micro", "schedule", "chunks", "zero",
                               "shard_group", "recompute", "recompute_every"})
      layout += table.at(row, column) + " ";
    EXPECT_TRUE(layouts.insert(layout).second) << layout << "twice";
  }
  const RunConfig emitted = parse_run_config(content_of("best.yaml"), "best.yaml");
  EXPECT_EQ(emitted.layout.tp, table.number(best, "tp"));
  EXPECT_EQ(emitted.layout.pp, table.number(best, "pp"));
  EXPECT_EQ(emitted.layout.zero, table.number(best, "zero"));
  EXPECT_EQ(emitted.layout.micro_batch, table.number(best, "micro"));
  EXPECT_EQ(emitted.batch.global, 8);
  EXPECT_EQ(emitted.train.steps, 100);
  EXPECT_TRUE(emitted.train.save);
  // Only the logs of the trials are left.
  for (const auto& entry : fs::directory_iterator(directory_ / "run-tune"))
    EXPECT_EQ(entry.path().extension(), ".log") << entry.path();
  EXPECT_FALSE(fs::exists(directory_ / "run"));
}

TEST_F(PlanTune, OneRankNeedsNoLauncherAndFailuresAreReported) {
  // Every second trial finds no corpus.
  const Outcome outcome =
      run(tune_ +
          "1 --trials 6 --within 50 --log trials.csv --launch '[ $(({trial} % 2)) = 1 ] || mv "
          "corpus.txt gone; trap \"[ ! -e gone ] || mv gone corpus.txt\" EXIT;'");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("6 trials, 3 failed"));
  EXPECT_THAT(outcome.error, HasSubstr("failed: "));
  EXPECT_THAT(outcome.error, HasSubstr("corpus.txt"));
  EXPECT_EQ(CsvTable(content_of("trials.csv"), "").rows(), 6u);
}

TEST_F(PlanTune, SameErrorsEndTheTuning) {
  const Outcome outcome =
      run(tune_ + "1 --within 50 --log trials.csv --set 'data.train=[{path: nowhere.txt}]'");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.error,
              AllOf(HasSubstr("failed with the same error"), HasSubstr("nowhere.txt")));
  EXPECT_FALSE(fs::exists(directory_ / "trials.csv"));
}

TEST_F(PlanTune, ATrialThatTakesTooLongLeavesNoProcess) {
  const Outcome outcome = run(tune_ +
                              "1 --trials 1 --trial-timeout 2s --launch 'echo $$ >> pids; sleep "
                              "1000 & echo $! >> pids; wait #'");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("took longer than 2 s"));
  expect_dead("pids", 2);
}

TEST_F(PlanTune, ASignalEndsTheTrials) {
  const std::string log = (directory_ / "log").string();
  const pid_t tuning =
      start_session({"/bin/sh", "-c",
                     "cd '" + directory_.path().string() + "' && exec '" + kintsugi_binary() +
                         "' plan " + tune_ + "1 --steps 1000000 --launch 'echo $$ >> pids;'"},
                    log);
  wait_for(directory_ / "run-tune/trial-001/metrics.jsonl");
  kill(tuning, SIGINT);
  int status = 0;
  waitpid(tuning, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << content_of("log");
  EXPECT_THAT(content_of("log"), AllOf(HasSubstr("stopped"), HasSubstr("none of 0 trials")));
  EXPECT_FALSE(fs::exists(directory_ / "run-tune/trial-001"));
  expect_dead("pids", 1);
}

// At its time limit Slurm signals the ranks first. This is no failure of the layout, and no other
// trial should start.
TEST_F(PlanTune, ATrialStoppedByASignalEndsTheTuning) {
  const Outcome outcome =
      run(tune_ +
          "1 --steps 1000000 --log trials.csv --launch 'stopped() { \"$@\" & until [ -s "
          "run-tune/trial-001/metrics.jsonl ]; do sleep 0.05; done; kill -TERM $!; wait $!; }; "
          "stopped'");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("stopped"), HasSubstr("none of 0 trials")));
  EXPECT_FALSE(fs::exists(directory_ / "trials.csv"));
  EXPECT_FALSE(fs::exists(directory_ / "run-tune/trial-002.log"));
}

TEST_F(PlanTune, NonsenseGetsAnAnswer) {
  EXPECT_THAT(mistake(tune_ + "2 --launch 'no-such-launcher -n {ranks}'"),
              AllOf(HasSubstr("no-such-launcher"), HasSubstr("not found")));
  EXPECT_THAT(mistake("tune run.yaml --gpus 2"), HasSubstr("--machine"));
  EXPECT_THAT(mistake("tune run.yaml --machine desk.yaml"), HasSubstr("--gpus"));
  EXPECT_THAT(mistake(tune_ + "3"), HasSubstr("desk has 2"));
  EXPECT_THAT(mistake(tune_ + "2 --model llama-8b"), HasSubstr("has no option '--model'"));
  EXPECT_THAT(mistake(tune_ + "2 --rank-by energy"), HasSubstr("has no option '--rank-by'"));
  EXPECT_THAT(mistake(tune_ + "2 --steps 2"), HasSubstr("--steps"));
  EXPECT_THAT(mistake(tune_ + "2 --trial-timeout soon"), HasSubstr("soon"));
  EXPECT_THAT(mistake(tune_ + "2 --emit run.yaml"), HasSubstr("would replace the input run.yaml"));
  EXPECT_THAT(mistake(tune_ + "2 --pp 2 --schedule zb-h1 --set offload.gradients=true"),
              HasSubstr("is worth a trial"));
  EXPECT_THAT(mistake(tune_ + "2 --emit no/where.yaml"), HasSubstr("there is no directory no"));
  EXPECT_THAT(mistake(tune_ + "2 --tp 2 --pp 2"), HasSubstr("is worth a trial"));
  EXPECT_THAT(mistake("tune nowhere.yaml --machine desk.yaml --gpus 2"), HasSubstr("nowhere.yaml"));
  EXPECT_THAT(mistake("tune --trials 5"), HasSubstr("config is required"));
  std::ofstream(directory_ / "trials.csv") << "one,two\n";
  EXPECT_THAT(mistake(tune_ + "2 --log trials.csv"), HasSubstr("not a trial log"));
}

// Processes that ignore SIGTERM are killed, including descendants.
TEST(ChildSession, EndsAsAWhole) {
  TemporaryDirectory directory;
  const std::string pids = (directory / "pids").string();
  const pid_t leader = start_session({"/bin/sh", "-c",
                                      "trap '' TERM; (trap '' TERM; sleep 1000) & echo $! > '" +
                                          pids + "'; echo $$ >> '" + pids + ".2'; wait"},
                                     directory / "log");
  wait_for(pids + ".2");
  EXPECT_FALSE(session_is_over(leader));
  const int status = end_session(leader);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  for (const std::string& name : {pids, pids + ".2"}) {
    std::string pid;
    std::ifstream(name) >> pid;
    EXPECT_FALSE(pid.empty() || alive(pid)) << name;
  }
}

}  // namespace
}  // namespace kintsugi
