// kintsugi campaign in a real Slurm on this machine: jobs that wait for each other, one of which is
// killed.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/campaign_files.h"
#include "support/fault_runs.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CampaignInSlurm : public ProgramTest {
 protected:
  CampaignInSlurm() { write_campaign_files(directory_); }
  Outcome campaign(const std::string& arguments) {
    return run_kintsugi("campaign campaign.yaml " + arguments);
  }
  // More campaigns, which run beside the first one.
  void submit_others() {
    directory_.write("fast.yaml", cpu_machine(100));  // promises far more than a core does
    directory_.write("budget.yaml",
                     "campaign: {dir: budget, max_gpu_hours: 4e-5}\n"
                     "launch: {machine: fast.yaml, time: 10min}\n"
                     "nodes: {first: {run: base.yaml}, second: {run: base.yaml, from: first}}\n");
    directory_.write("endless.yaml",
                     "campaign: {dir: endless}\nlaunch: {machine: fast.yaml, time: 10min}\n"
                     "nodes:\n  first: {run: base.yaml, set: {train.steps: 100000}}\n"
                     "  second: {command: touch second, after: [first]}\n");
    // What `data` makes is not what `bad` needs: its job finds that out.
    directory_.write("late.yaml",
                     "campaign: {dir: late}\nlaunch: {machine: fast.yaml, time: 10min}\n"
                     "nodes:\n  data: {command: touch data}\n"
                     "  bad: {run: base.yaml, set: {data.train: [{path: '{data}/text.txt'}]}}\n"
                     "  next: {command: touch next, after: [bad]}\n"
                     "  good: {command: touch good, after: [data]}\n");
    for (const char* name : {"budget.yaml", "endless.yaml", "late.yaml"}) {
      const Outcome submitted = run_kintsugi(fmt::format("campaign {} --yes", name));
      EXPECT_EQ(submitted.code, 0) << submitted.error;
    }
  }
  void check_others() {
    EXPECT_THAT(run_kintsugi("campaign budget.yaml --status").out,
                AllOf(HasSubstr("1 of 2 jobs done"), HasSubstr("the limit of 4e-05 GPU-hours")));
    EXPECT_FALSE(fs::exists(directory_ / "budget/second/metrics.jsonl"));
    EXPECT_THAT(run_kintsugi("campaign endless.yaml --status").out,
                AllOf(HasSubstr("0 of 2 jobs done"), HasSubstr("stopped")));
    EXPECT_FALSE(fs::exists(directory_ / "second"));
    const std::string late = run_kintsugi("campaign late.yaml --status").out;
    EXPECT_THAT(late, AllOf(HasSubstr("2 of 4 jobs done"), HasSubstr("late/data/text.txt"),
                            HasSubstr("needs bad, which is failed")));
    EXPECT_TRUE(fs::exists(directory_ / "good"));
    EXPECT_FALSE(fs::exists(directory_ / "next"));
    // It is not submitted again without --retry.
    EXPECT_THAT(run_kintsugi("campaign late.yaml --yes").out, Not(HasSubstr("submitted job")));
  }
  void wait_for_jobs() {
    run_in_shell("for i in $(seq 600); do [ -n \"$(squeue -h)\" ] || break; sleep 0.1; done");
  }
  std::string log_of(const std::string& task) {
    return run_in_shell("cat c/" + task + "/launch/slurm-*.out c/" + task + "/launch/output.txt")
        .out;
  }
};

TEST_F(CampaignInSlurm, AKilledJobAndWhatFollowsAreSubmittedAgain) {
  if (!SlurmCluster::available()) GTEST_SKIP() << "no Slurm here";
  const SlurmCluster cluster(3);
  submit_others();
  const Outcome first = campaign("--yes");
  ASSERT_EQ(first.code, 0) << first.error << first.out;
  EXPECT_EQ(std::count(first.out.begin(), first.out.end(), '\n'), 8 + 10) << first.out;
  EXPECT_THAT(first.out, AllOf(HasSubstr(": long (after "), HasSubstr(": score (after ")));
  EXPECT_THAT(campaign("--yes").out, Not(HasSubstr("submitted job")))
      << "nothing is missing while all jobs are in the queue";
  // The job of `long` is killed while it trains.
  const Outcome killed = run_in_shell(
      "for i in $(seq 1200); do grep -q '\"step\":9,' c/long/metrics.jsonl 2>/dev/null && break; "
      "sleep 0.05; done\n"
      "scancel --signal=KILL --full $(grep -o '\"[0-9][0-9]*\"' c/.campaign/tasks/long.plan.json | "
      "tr -d '\"')");
  ASSERT_EQ(killed.code, 0) << killed.error << log_of("sweep/lr-1e-3") << log_of("long");
  EXPECT_THAT(run_kintsugi("campaign endless --cancel").out,
              AllOf(HasSubstr("first: asked to save and stop"),
                    HasSubstr("second: removed from the queue")));
  wait_for_jobs();
  const Outcome status = campaign("--status");
  EXPECT_THAT(status.out, AllOf(HasSubstr("4 of 9 jobs done"), HasSubstr("needs long, which has")))
      << log_of("long");
  EXPECT_FALSE(fs::exists(directory_ / "c/merge/model"));
  check_others();
  const Outcome second = campaign("--yes");
  EXPECT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(second.out,
              AllOf(HasSubstr(": long\n"), HasSubstr(": merge (after "), Not(HasSubstr("sweep/"))));
  wait_for_jobs();
  const Outcome done = campaign("--status");
  EXPECT_THAT(done.out, HasSubstr("9 of 9 jobs done")) << log_of("long") << log_of("merge");
  EXPECT_THAT(log_of("score"), HasSubstr("perplexity"));
  EXPECT_TRUE(fs::exists(directory_ / "c/merge/model/config.json"));
}

}  // namespace
}  // namespace kintsugi
