// kintsugi campaign on this machine.
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "support/campaign_files.h"
#include "support/mpirun.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CampaignCommand : public ProgramTest {
 protected:
  CampaignCommand() { write_campaign_files(directory_); }

  Outcome campaign(const std::string& arguments) {
    return run_kintsugi("campaign campaign.yaml " + arguments);
  }
  std::string refused(const std::string& arguments) {
    const Outcome outcome = campaign(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.error, StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
  // The same behind the plan.
  std::string refused_after_plan(const std::string& arguments) {
    const Outcome outcome = campaign(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr("Planned: "));
    return outcome.error;
  }
  void replace_in(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = content_of(name);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    directory_.write(name, text.replace(at, from.size(), to));
  }
  // How often a run was started.
  std::size_t attempts(const std::string& run) {
    const std::string lines = content_of("c/" + run + "/launch/attempts.jsonl");
    return static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n'));
  }
  // Of the attempts of all runs and of the commands, from the files that bash has written.
  double attempt_hours() {
    double seconds = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory_ / "c")) {
      const std::string name = fs::relative(entry.path(), directory_.path()).string();
      if (entry.path().filename() == "attempts.jsonl") {
        std::istringstream lines(content_of(name));
        for (std::string line; std::getline(lines, line);) {
          const auto json = nlohmann::json::parse(line);
          seconds += json["ended"].get<double>() - json["began"].get<double>();
        }
      } else if (name.ends_with("launch/process")) {
        seconds += std::chrono::duration<double>(
                       fs::last_write_time(entry.path().parent_path() / "exit_code") -
                       fs::last_write_time(entry.path()))
                       .count();
      }
    }
    return seconds / 3600;
  }
  double spent_hours() {
    const std::string status = campaign("--status").out;
    const std::size_t at = status.find("\nspent ");
    return at == std::string::npos ? -1 : std::stod(status.substr(at + 7));
  }
  double last_loss(const std::string& run) {
    double loss = 0;
    std::istringstream lines(content_of("c/" + run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      loss = nlohmann::json::parse(line)["loss"].get<double>();
    return loss;
  }
};

// The driver and the run are killed while `long` trains; the same command then does what is
// missing, with the bits of runs that were started by hand.
TEST_F(CampaignCommand, IsKilledAndContinuesWithTheSameBits) {
  run_in_shell(
      "\"$kintsugi\" campaign campaign.yaml --local --yes >first.txt 2>&1 & driver=$!\n"
      "for i in $(seq 3000); do grep -q '\"step\":9,' c/long/metrics.jsonl 2>/dev/null && break\n"
      "  kill -0 $driver 2>/dev/null || break; sleep 0.02; done\n"
      "kill -9 $driver; for file in /proc/[0-9]*/cmdline; do\n"
      "  if tr '\\0' ' ' <$file 2>/dev/null | grep -q \"$PWD/c/long\"; then\n"
      "    kill -9 $(echo $file | tr -dc 0-9); fi; done; true");
  const Outcome status = campaign("--status");
  EXPECT_THAT(status.out, AllOf(HasSubstr("4 of 9 jobs done"), HasSubstr("3 of 3 done"),
                                HasSubstr("\n  best "), HasSubstr("\n    long ")))
      << content_of("first.txt");
  const Outcome second = campaign("--local --yes");
  ASSERT_EQ(second.code, 0) << second.error << second.out;
  for (const char* point : {"lr-1e-3", "lr-4e-3", "lr-1e-2"})
    EXPECT_EQ(attempts(std::string("sweep/") + point), 1u) << point;
  // What `best` has chosen.
  std::string best = "lr-1e-3";
  for (const char* point : {"lr-4e-3", "lr-1e-2"})
    if (last_loss(std::string("sweep/") + point) < last_loss("sweep/" + best)) best = point;
  const Outcome done = campaign("--status");
  EXPECT_THAT(done.out, AllOf(HasSubstr("9 of 9 jobs done"), HasSubstr("sweep/" + best + " with"),
                              HasSubstr("step 60 of 60"), HasSubstr("spent ")));
  // By hand, undisturbed.
  const std::string by_hand = fmt::format(
      "\"$kintsugi\" train base.yaml --set optimizer.lr={} --set train.steps=60 --set "
      "train.keep_every=20 --set run.dir=hand >/dev/null && \"$kintsugi\" train base.yaml --set "
      "optimizer.lr={} --set train.steps=4 --set optimizer.schedule=linear --set run.dir=hand-cool "
      "--set run.from=hand/checkpoints/step-00000040 >/dev/null",
      best.substr(3), best.substr(3));
  ASSERT_EQ(run_in_shell(by_hand).code, 0) << content_of("error.txt");
  const auto weights = [&](const std::string& run, int step) {
    return content_of(fmt::format("{}/checkpoints/step-{:08}/model.safetensors", run, step));
  };
  EXPECT_EQ(weights("c/long", 60), weights("hand", 60));
  EXPECT_EQ(weights("c/cool/step-40", 44), weights("hand-cool", 44));
  EXPECT_FALSE(weights("hand", 60).empty());
  EXPECT_TRUE(fs::exists(directory_ / "c/merge/model/config.json"));
  EXPECT_THAT(content_of("c/score/launch/output.txt"), HasSubstr("perplexity"));
  // Nothing is missing.
  // What the killed attempt has used counts, too.
  EXPECT_EQ(attempts("long"), 2u);
  EXPECT_NEAR(spent_hours(), attempt_hours(), 0.02 * attempt_hours());
  const Outcome third = campaign("--local --yes");
  EXPECT_EQ(third.code, 0) << third.error;
  EXPECT_EQ(attempts("cool/step-60"), 1u);
  // A run that has ended is not changed under the campaign's hands.
  replace_in("campaign.yaml", "train.steps: 60", "train.steps: 80");
  EXPECT_THAT(refused("--local --yes"),
              AllOf(HasSubstr("line 7: node long has changed"), HasSubstr("--retry long")));
  // Of a node that is done again, what follows is done again, too; what was before stays.
  replace_in("campaign.yaml", "train.steps: 80", "train.steps: 60");
  // Nor is the choice that others follow, and what it was made from.
  const std::string good = content_of("campaign.yaml");
  replace_in("campaign.yaml", "1e-2]", "1e-2, 2e-2]");
  EXPECT_THAT(refused("--local --yes"),
              HasSubstr("node best has changed, or the runs of sweep, but best is done"));
  directory_.write("campaign.yaml", good);
  replace_in("campaign.yaml", "metric: loss}", "metric: loss, order: highest}");
  EXPECT_THAT(refused("--local --yes"), HasSubstr("line 6: node best has changed"));
  directory_.write("campaign.yaml", good.substr(0, good.find("  score:")));
  EXPECT_THAT(refused("--local --yes"), HasSubstr("score is not in it any more, but is done"));
  const double before = spent_hours();
  EXPECT_EQ(campaign("--local --yes --retry score").code, 0) << content_of("error.txt");
  EXPECT_TRUE(fs::exists(directory_ / "c/score.old-1"));
  EXPECT_NEAR(spent_hours(), before, 0.02 * before) << "what it has used still counts";
  directory_.write("campaign.yaml", good);
  EXPECT_EQ(campaign("--local --yes").code, 0) << content_of("error.txt");
  replace_in("campaign.yaml", "'the river'", "'the road'");
  const Outcome retried = campaign("--local --yes --retry score");
  EXPECT_EQ(retried.code, 0) << retried.error;
  EXPECT_TRUE(fs::exists(directory_ / "c/score.old-2/launch/output.txt"));
  EXPECT_TRUE(fs::exists(directory_ / "c/score/launch/output.txt"));
  EXPECT_EQ(attempts("cool/step-60"), 1u);
}

TEST_F(CampaignCommand, StopsWhereTheBudgetIsUsedUp) {
  // The machine's description promises far more than a core of this machine does.
  directory_.write("cpu.yaml", cpu_machine(100));
  const Outcome plan = campaign("--local --dry-run");
  EXPECT_EQ(plan.code, 0) << plan.error;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("3 runs"), HasSubstr("lowest loss of sweep"),
                              HasSubstr("kWh"), HasSubstr("Not predicted: merge, score.")));
  EXPECT_FALSE(fs::exists(directory_ / "c"));
  EXPECT_THAT(refused_after_plan("--local"), HasSubstr("nothing was started: give --yes"));
  EXPECT_THAT(refused_after_plan("--local --yes --max-gpu-hours 1e-12"),
              AllOf(HasSubstr("the campaign needs up to"), HasSubstr("nothing was started")));
  EXPECT_FALSE(fs::exists(directory_ / "c/sweep"));
  const Outcome stopped = campaign("--local --yes --max-gpu-hours 2.5e-4");  // 0.9 s
  EXPECT_EQ(stopped.code, 2);
  EXPECT_THAT(stopped.error,
              HasSubstr("was not started because of the limit of 0.00025 GPU-hours"));
  EXPECT_EQ(attempts("sweep/lr-1e-3"), 1u);
  EXPECT_FALSE(fs::exists(directory_ / "c/cool"));
  EXPECT_THAT(campaign("--status").out, HasSubstr("of 0.00025, "));
  // The limit is remembered, and counts more than that of the file, until another one is given.
  replace_in("campaign.yaml", "{dir: c}", "{dir: c, max_gpu_hours: 5}");
  EXPECT_EQ(campaign("--local --yes").code, 2);
  EXPECT_THAT(content_of("error.txt"), HasSubstr("0.00025"));
  campaign("--local --yes --max-gpu-hours 0.1");
  EXPECT_THAT(campaign("--status").out, HasSubstr("of 0.1, "));
}

TEST_F(CampaignCommand, AMistakeThatIsFoundLateStopsOnlyWhatFollows) {
  directory_.write("campaign.yaml",
                   "campaign: {dir: c}\nnodes:\n"
                   "  data: {command: 'cp corpus.txt {self}/other.txt'}\n"
                   "  bad: {run: base.yaml, set: {data.train: [{path: '{data}/text.txt'}]}}\n"
                   "  next: {command: 'cp {bad}/config.yaml next', after: [data]}\n"
                   "  good: {run: base.yaml, set: {data.train: [{path: '{data}/other.txt'}]}}\n");
  const Outcome first = campaign("--local --yes");
  EXPECT_EQ(first.code, 1);
  EXPECT_THAT(first.error, AllOf(HasSubstr("2 of 4 jobs of the campaign are done; bad is failed"),
                                 HasSubstr("c/data/text.txt")));
  const Outcome status = campaign("--status");
  EXPECT_THAT(status.out, AllOf(HasSubstr("step 4 of 4"), HasSubstr("c/data/text.txt"),
                                HasSubstr("needs bad, which is failed")));
  EXPECT_EQ(campaign("--local --yes").code, 1) << "it waits for --retry";
  EXPECT_EQ(attempts("good"), 1u);
  directory_.write("c/data/text.txt", content_of("corpus.txt"));
  EXPECT_EQ(campaign("--local --yes --retry bad").code, 0) << content_of("error.txt");
  EXPECT_EQ(attempts("bad"), 1u);
  EXPECT_TRUE(fs::exists(directory_ / "next"));
}

TEST_F(CampaignCommand, AnEditedNodeThatWasStoppedIsDoneAgain) {
  directory_.write("campaign.yaml",
                   "campaign: {dir: c}\nnodes:\n"
                   "  long: {run: base.yaml, set: {train.steps: 100000}}\n");
  run_in_shell(
      "\"$kintsugi\" campaign campaign.yaml --local --yes >first.txt 2>&1 & driver=$!\n"
      "for i in $(seq 1500); do grep -q '\"step\":3,' c/long/metrics.jsonl 2>/dev/null && break\n"
      "  sleep 0.02; done\n\"$kintsugi\" campaign campaign.yaml --cancel; wait $driver");
  replace_in("campaign.yaml", "100000", "3");
  EXPECT_THAT(refused("--local --yes"), HasSubstr("long has changed, but long is stopped"));
  EXPECT_EQ(campaign("--local --yes --retry long").code, 0) << content_of("error.txt");
  EXPECT_TRUE(fs::exists(directory_ / "c/long.old-1/metrics.jsonl"));
  EXPECT_THAT(campaign("--status").out, HasSubstr("step 3 of 3"));
}

// On a full disk no stop file can be written, but Slurm can be asked.
TEST_F(CampaignCommand, JobsAreCancelledOnAFullDisk) {
  directory_.write("campaign.yaml",
                   "campaign: {dir: c}\nnodes:\n  a: {run: base.yaml}\n  b: {run: base.yaml}\n");
  for (const char* task : {"a", "b"}) {
    fs::create_directories(directory_ / "c/.campaign/tasks");
    fs::create_directories(directory_ / "c" / task);
    directory_.write(fmt::format("c/.campaign/tasks/{}.plan.json", task),
                     fmt::format(R"({{"fingerprint":"x","job_ids":["{}"],"gpus":1,"gpu_hours":1,)"
                                 R"("earlier_gpu_hours":0}})",
                                 *task == 'a' ? 71 : 72));
  }
  const Outcome outcome = run_in_shell(
      "mkdir bin; echo 'exit 0' >bin/sbatch\n"
      "echo 'echo \"71|RUNNING|n1|0:10|1:00\"; echo \"72|RUNNING|n2|0:10|1:00\"' >bin/squeue\n"
      "echo 'mkdir \"asked: $*\"' >bin/scancel\n"
      "for name in bin/*; do sed -i '1i #!/bin/sh' $name; chmod +x $name; done\n"
      "(trap '' XFSZ; ulimit -f 0; PATH=$PWD/bin:$PATH \"$kintsugi\" campaign campaign.yaml "
      "--cancel 2>&1; echo code $?) | cat");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("not everything was cancelled: "), HasSubstr("stop"),
                                 HasSubstr("code 1")));
  EXPECT_TRUE(fs::exists(directory_ / "asked: --state=RUNNING --signal=USR1 71 72")) << outcome.out;
}

TEST_F(CampaignCommand, JobsRunAtTheSameTime) {
  // Each waits until the other one has begun.
  const char* meet =
      "'touch {}; for i in $(seq 400); do test -e {} && exit 0; sleep 0.02; done; exit 1'";
  directory_.write("campaign.yaml",
                   "campaign: {dir: c}\nlaunch: {ranks: 2}\nnodes:\n  a: {command: " +
                       fmt::format(fmt::runtime(meet), "a", "b") +
                       "}\n  b: {command: " + fmt::format(fmt::runtime(meet), "b", "a") +
                       "}\n  one: {run: base.yaml, set: {batch.micro: 2}}\n  two: {run: base.yaml, "
                       "set: {batch.micro: 2}}\n");
  EXPECT_THAT(refused("--jobs 2 --yes"), HasSubstr("--jobs has no effect without --local"));
  const Outcome outcome = run_in_shell(
      std::string(kOpenMpi) + "\"$kintsugi\" campaign campaign.yaml --local --yes --jobs 2");
  EXPECT_EQ(outcome.code, 0) << outcome.error << outcome.out;
  for (const char* run : {"one", "two"}) EXPECT_EQ(attempts(run), 1u);
}

TEST_F(CampaignCommand, ShellsKeepTheirBraces) {
  directory_.write("campaign.yaml",
                   "campaign: {dir: 'my c'}\nnodes:\n"
                   "  first: {command: 'touch {self}/a{1..3}'}\n"
                   "  second: {command: \"ls '{first}' | awk '{print $1}' >\\\"{self}/list\\\"; ls "
                   "{first}/a2 | awk '{print}'\"}\n");
  EXPECT_EQ(campaign("--local --yes").code, 0) << content_of("error.txt");
  EXPECT_EQ(content_of("my c/second/list"), "a1\na2\na3\nlaunch\n");
  EXPECT_EQ(content_of("my c/second/launch/output.txt"), "my c/first/a2\n");
}

// Another command says --cancel while this one asks at a terminal.
TEST_F(CampaignCommand, CancelCountsWhileTheQuestionIsAsked) {
  directory_.write("campaign.yaml", "campaign: {dir: c}\nnodes: {a: {command: 'touch began'}}\n");
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal) | ::unlockpt(terminal), 0);
  const std::string name = ::ptsname(terminal);
  std::thread asks([&] {
    run_in_shell("{ \"$kintsugi\" campaign campaign.yaml --local <" + name +
                 " >asked.txt 2>asked-error.txt; echo $? >code; }");
  });
  for (int i = 0; i < 500 && content_of("asked.txt").find("[y/N]") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::string cancel = "cd '" + directory_.path().string() + "' && '" + kintsugi_binary() +
                             "' campaign campaign.yaml --cancel >cancel.txt 2>&1";
  EXPECT_EQ(std::system(cancel.c_str()), 0) << content_of("cancel.txt");
  EXPECT_EQ(::write(terminal, "y\n", 2), 2);
  asks.join();
  ::close(terminal);
  EXPECT_EQ(content_of("code"), "75\n") << content_of("asked-error.txt");
  EXPECT_THAT(content_of("asked-error.txt"), HasSubstr("--cancel was given meanwhile"));
  EXPECT_FALSE(fs::exists(directory_ / "began"));
  EXPECT_FALSE(fs::exists(directory_ / "c")) << "nothing is left behind";
}

TEST_F(CampaignCommand, LeavesWhatOthersHaveMade) {
  fs::create_directories(directory_ / "c/data");
  directory_.write("c/data/tokens.bin", "precious");
  directory_.write("campaign.yaml",
                   "campaign: {dir: c}\nnodes:\n  data: {command: 'echo x >{self}/made'}\n");
  const Outcome refused = campaign("--local --yes");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.error, HasSubstr("c/data exists, and this campaign has not made it"));
  EXPECT_EQ(content_of("c/data/tokens.bin"), "precious");
}

TEST_F(CampaignCommand, AFailedCommandBlocksWhatFollowsUntilItIsRetried) {
  directory_.write("campaign.yaml",
                   "campaign: {dir: c}\nnodes:\n"
                   "  first: {command: 'echo began >>log; test -e allowed; echo x >{self}/made'}\n"
                   "  second: {command: 'cat {first}/made >second.txt'}\n"
                   "  third: {command: 'echo other >third.txt'}\n");
  const Outcome failed = campaign("--local --yes");
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.error, HasSubstr("1 of 3 jobs of the campaign are done; first is failed"));
  EXPECT_EQ(content_of("third.txt"), "other\n") << "it needs nothing of the first";
  EXPECT_THAT(campaign("--status").out,
              AllOf(HasSubstr("exit code 1"), HasSubstr("needs first, which is failed")));
  EXPECT_EQ(campaign("--local --yes").code, 1);
  EXPECT_EQ(content_of("log"), "began\n") << "only --retry starts it again";
  directory_.write("allowed", "");
  EXPECT_EQ(campaign("--local --yes --retry first").code, 0);
  EXPECT_EQ(content_of("second.txt"), "x\n");
  EXPECT_THAT(campaign("--cancel").error, HasSubstr("there is nothing to cancel"));
}

TEST_F(CampaignCommand, RefusesWhatCannotWork) {
  const std::string good = content_of("campaign.yaml");
  const auto wrong = [&](const std::string& from, const std::string& to) {
    directory_.write("campaign.yaml", good);
    replace_in("campaign.yaml", from, to);
    const std::string error = refused("--local --yes");
    EXPECT_FALSE(fs::exists(directory_ / "c/sweep")) << error;
    return error;
  };
  EXPECT_THAT(wrong("run: base.yaml", "run: basis.yaml"),
              HasSubstr("line 5: node sweep: there is no file basis.yaml"));
  EXPECT_THAT(wrong("train.steps: 60", "train.stepps: 60"), HasSubstr("did you mean"));
  EXPECT_THAT(wrong("at: [40, 60]", "at: [40, 61]"), HasSubstr("long has the steps 1 to 60"));
  EXPECT_THAT(wrong("at: [40, 60]", "at: [41, 60]"), HasSubstr("set train.keep_every there"));
  EXPECT_THAT(wrong("machine: cpu.yaml", "machine: cpus.yaml"), HasSubstr("cpus.yaml"));
  EXPECT_THAT(wrong("metric: loss", "metric: lss"),
              HasSubstr("line 6: node best: lss is no metric of a run (did you mean 'loss'?)"));
  EXPECT_THAT(wrong("metric: loss", "metric: valid_loss"),
              HasSubstr("sweep/lr-1e-3 does not validate (train.eval_every: 0)"));
  EXPECT_THAT(wrong("from: long", "from: lnog"), HasSubstr("did you mean 'long'"));
  directory_.write("campaign.yaml", good);
  EXPECT_THAT(refused("--status --yes"), HasSubstr("--yes has no effect with --status"));
  EXPECT_THAT(refused("--local --yes --retry lonng"), HasSubstr("did you mean 'long'"));
}

}  // namespace
}  // namespace kintsugi
