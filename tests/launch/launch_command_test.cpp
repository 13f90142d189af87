// kintsugi launch, with programs in place of Slurm's that record how they are called.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "backend/gpu/gpu_backend.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kRunFile = R"(run: {dir: runs/demo}
model: {preset: llama-tiny, layers: 2}
data: {train: [{path: corpus.txt}], sequence_length: 32}
batch: {global: 16, micro: 2}
optimizer: {warmup_steps: 1}
train: {steps: 4, eval_every: 4, eval_batches: 1, checkpoint_every: 2}
)";

constexpr const char* kCluster = R"(name: the cluster
nodes: 8
gpu: {bf16_tflops: 312, memory_gb: 80, memory_gb_s: 2039, tdp_w: 400}
node: {gpus: 2, link_gb_s: 300}
network: {gb_s: 25}
storage_gb_s: 1
topology: ["numa 0: cores 0-3; gpus 0", "numa 1: cores 4-7; gpus 1"]
launch:
  partition: main
  limits: [{nodes: 8, time_h: 2}]
)";

class LaunchCommand : public ProgramTest {
 protected:
  LaunchCommand() {
    directory_.write("run.yaml", kRunFile);
    directory_.write("cluster.yaml", kCluster);
    directory_.write("corpus.txt", small_corpus(400));
    fs::create_directories(directory_ / "bin");
    program("sinfo", "echo 'main*|2:00:00|6'; echo 'debug|30:00|2'; echo 'main*|2:00:00|2'");
    program("sbatch", "[ \"$1\" = --version ] || echo '41;cluster'");
    program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
    program("scancel", "true");
  }

  void program(const std::string& name, const std::string& commands) {
    const std::string file = "bin/" + name;
    directory_.write(file, "#!/bin/bash\necho " + name + " \"$@\" >>" +
                               (directory_ / "calls").string() + "\n" + commands + "\n");
    fs::permissions(directory_ / file, fs::perms::owner_all);
  }
  Outcome launch(const std::string& arguments) {
    return run_in_shell("unset SBATCH_ACCOUNT; PATH=\"$PWD/bin:$PATH\" \"$kintsugi\" launch " +
                        arguments);
  }
  Outcome on_cluster(const std::string& arguments) {
    return launch("run.yaml --machine cluster.yaml --time 1h " + arguments);
  }
  // One line, nothing written, nothing submitted.
  std::string refused(const Outcome& outcome, int code = 2) {
    EXPECT_EQ(outcome.code, code) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.error, StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    EXPECT_FALSE(fs::exists(directory_ / "runs")) << outcome.error;
    if (code == 2) {
      EXPECT_THAT(content_of("calls"), Not(HasSubstr("--parsable")));
    }
    return outcome.error;
  }
  nlohmann::json job() { return nlohmann::json::parse(content_of("runs/demo/launch/job.json")); }
};

TEST_F(LaunchCommand, Submits) {
  const Outcome outcome = on_cluster("--nodes 4 --spare-nodes 1 --set optimizer.lr=0.25");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("submitted job 41"), HasSubstr("--follow")));
  const std::string script = content_of("runs/demo/launch/job.sh");
  EXPECT_THAT(script, AllOf(HasSubstr("#SBATCH --nodes=5\n#SBATCH --no-kill\n"),
                            HasSubstr("#SBATCH --partition=main\n"),
                            HasSubstr("#SBATCH --time=01:00:00\n")));
  const std::string machine = fs::canonical(directory_ / "cluster.yaml").string();
  EXPECT_THAT(content_of("runs/demo/launch/config.yaml"),
              AllOf(HasSubstr("lr: 0.25\n"), HasSubstr("machine: " + machine + "\n")));
  EXPECT_EQ(job()["job_ids"], nlohmann::json({"41"}));
  EXPECT_EQ(job()["nodes"], 4);
  EXPECT_EQ(job()["spare_nodes"], 1);
  EXPECT_EQ(job()["ranks_per_node"], 2);
  EXPECT_EQ(job()["launcher"][0], "srun");
  const std::string file = fs::canonical(directory_ / "runs/demo/launch/job.sh").string();
  EXPECT_THAT(content_of("calls"), HasSubstr("sbatch --parsable " + file + "\n"));
}

TEST_F(LaunchCommand, SubmitsAnAcceptanceTest) {
  const Outcome outcome =
      launch("--accept report --machine cluster.yaml --nodes 2 --parts recovery,losses");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("submitted job 41"), HasSubstr("report/acceptance.html")));
  std::string script = content_of("report-trials/launch/job.sh");
  EXPECT_THAT(script, AllOf(HasSubstr("#SBATCH --nodes=2\n"), HasSubstr("#SBATCH --no-requeue\n"),
                            HasSubstr("#SBATCH --time=00:20:00\n"), Not(HasSubstr("--signal="))))
      << "a signal would stop the last trial";
  // The words that the script gives the program.
  const std::size_t begin = script.find("exec "), end = script.find(' ', begin + 5);
  script.replace(begin, end - begin, "printf '%s\\n'");
  directory_.write("words.sh", script);
  EXPECT_THAT(
      run_in_shell("bash words.sh").out,
      AllOf(StartsWith("accept\n--output\n"), HasSubstr("\n--ranks\n4\n--ranks-per-node\n2\n"),
            HasSubstr("\n--budget\n900s\n--launch\nsrun '--nodes={nodes}' '--ntasks={ranks}' "
                      "--ntasks-per-node=2 --kill-on-bad-exit=1 --overlap"),
            HasSubstr("\n--parts\nrecovery,losses\n"), Not(HasSubstr("{exclude}"))));
}

TEST_F(LaunchCommand, AnAcceptanceTestIsCheckedFirst) {
  const auto refused_test = [&](const std::string& arguments, const std::string& text) {
    const Outcome outcome = launch("--accept report --machine cluster.yaml " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.error, AllOf(StartsWith("error: "), HasSubstr(text)));
    EXPECT_FALSE(fs::exists(directory_ / "report-trials")) << arguments;
  };
  refused_test("--nodes 9", "the cluster has 8 nodes");
  refused_test("--time 3h", "more than a job");
  refused_test("--time 1h --partition debug", "at most 00:30:00");
  refused_test("run.yaml", "the configuration run.yaml has no effect with --accept");
  refused_test("--spare-nodes 1", "--spare-nodes has no effect with --accept");
  refused_test("--parts sped", "sped");
  EXPECT_THAT(launch("--accept report").error, HasSubstr("give --machine"));
  const Outcome printed = launch("--accept report --machine cluster.yaml --print");
  EXPECT_THAT(printed.out, StartsWith("#!/bin/bash\n"));
  EXPECT_FALSE(fs::exists(directory_ / "report-trials"));
  fs::create_directory(directory_ / "report");
  refused_test("", "report exists: choose another name");
}

TEST_F(LaunchCommand, PrintWritesAndAsksNothing) {
  const Outcome outcome = on_cluster("--nodes 2 --print");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(StartsWith("#!/bin/bash\n"), HasSubstr("#SBATCH --nodes=2\n")));
  EXPECT_FALSE(fs::exists(directory_ / "runs"));
  EXPECT_EQ(content_of("calls"), "");
}

TEST_F(LaunchCommand, ExplainsTheScript) {
  std::string cluster = kCluster;
  cluster.replace(cluster.find("partition: main"), 15, "partition: main  # the site's mail");
  directory_.write("cluster.yaml", cluster);
  const Outcome outcome = on_cluster("--nodes 2 --qos fast --explain");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(
      outcome.out,
      AllOf(StartsWith("#!/bin/bash\n"),
            HasSubstr("#SBATCH --partition=main\n#   <- launch.partition: the site's mail\n"),
            HasSubstr("#SBATCH --qos=fast\n#   <- --qos\n"),
            HasSubstr("#SBATCH --nodes=2\n#   <- --nodes 2\n"),
            HasSubstr("#   --overlap\n#   <- a step with a dead node"),
            HasSubstr("#   --cpu-bind=none\n#   <- launch.cpu_binding: the default\n")));
  EXPECT_FALSE(fs::exists(directory_ / "runs"));
  EXPECT_EQ(content_of("calls"), "");
  EXPECT_THAT(refused(launch("run.yaml --local --explain")), HasSubstr("--explain has no effect"));
}

TEST_F(LaunchCommand, RefusesBeforeItWrites) {
  EXPECT_THAT(refused(on_cluster("--partition mian")),
              AllOf(HasSubstr("no partition 'mian'"), HasSubstr("did you mean 'main'"),
                    HasSubstr("main, debug")));
  EXPECT_THAT(refused(on_cluster("--partition debug")),
              HasSubstr("the partition debug runs jobs for at most 00:30:00, not 01:00:00"));
  EXPECT_THAT(refused(on_cluster("--partition debug --nodes 4")),
              HasSubstr("4 nodes for the job, but the partition debug has 2"));
  EXPECT_THAT(refused(on_cluster("--nodes 9")),
              HasSubstr("--nodes 9, but the cluster has 8 nodes"));
  EXPECT_THAT(refused(on_cluster("--nodes 3")),
              AllOf(HasSubstr("--nodes 3 (6 ranks)"), HasSubstr("batch.global")));
  EXPECT_THAT(refused(on_cluster("--nodes 2 --min-nodes 1 --set layout.dp=4")),
              HasSubstr("--min-nodes 1 (2 ranks)"));
  EXPECT_THAT(refused(launch("run.yaml --machine cluster.yaml --time 5min")),
              AllOf(HasSubstr("a job of 5 min"), HasSubstr("too short for one save")));
  EXPECT_THAT(refused(on_cluster("--set data.train=[{path: nowhere.txt}]")),
              HasSubstr("nowhere.txt"));
  EXPECT_THAT(refused(on_cluster("--set optimizer.lrr=1")), HasSubstr("optimizer.lr"));
  EXPECT_THAT(refused(on_cluster("--cpu-bind mask_cpu:0x3,0x6")),
              HasSubstr("ranks 0 and 1 share core 1"));
  EXPECT_THAT(refused(on_cluster("--container no.sif")), HasSubstr("no.sif"));
  EXPECT_THAT(refused(launch("run.yaml --time 1h")), HasSubstr("--machine"));
  EXPECT_THAT(refused(launch("run.yaml --machine clutser.yaml")), HasSubstr("clutser.yaml"));
  EXPECT_THAT(refused(launch("none.yaml --machine cluster.yaml")), HasSubstr("none.yaml"));
}

class LaunchOnUndrivenGpus : public LaunchCommand {
 protected:
  LaunchOnUndrivenGpus() { program("sinfo", "echo 'standard-g*|2-00:00:00|2000'"); }
  void SetUp() override {
    if (gpu_platform() == "hip") GTEST_SKIP() << "this program can use them";
  }
  Outcome on_lumi(const std::string& arguments) {
    return launch("run.yaml --machine lumi-g --time 1h --account project_1 " + arguments);
  }
  const std::string why_ = "this program cannot use the GPUs of LUMI-G (MI250X GCD, AMD)";
};

TEST_F(LaunchOnUndrivenGpus, IsRefused) {
  EXPECT_THAT(refused(on_lumi("")), AllOf(HasSubstr(why_), HasSubstr("--set device=cpu"),
                                          HasSubstr("--allow-undriven-gpus")));
}

TEST_F(LaunchOnUndrivenGpus, NorAreTheyTestedThere) {
  const std::string test = "--accept report --machine lumi-g --nodes 1 --account project_1";
  const Outcome outcome = launch(test);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, AllOf(HasSubstr(why_), HasSubstr("--allow-undriven-gpus")));
  EXPECT_FALSE(fs::exists(directory_ / "report-trials"));
  const Outcome allowed = launch(test + " --allow-undriven-gpus --print");
  EXPECT_EQ(allowed.code, 0) << allowed.error;
  EXPECT_THAT(allowed.error, HasSubstr("warning: " + why_));
  EXPECT_THAT(allowed.out, HasSubstr("--device auto"));
}

TEST_F(LaunchOnUndrivenGpus, IsPrintedWithAWarning) {
  const Outcome outcome = on_lumi("--print");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("#!/bin/bash\n"));
  EXPECT_THAT(outcome.error, HasSubstr("warning: " + why_));
}

TEST_F(LaunchOnUndrivenGpus, IsSubmittedIfAsked) {
  const Outcome allowed = on_lumi("--allow-undriven-gpus");
  EXPECT_EQ(allowed.code, 0) << allowed.error;
  EXPECT_THAT(allowed.out, HasSubstr("submitted job 41"));
  EXPECT_THAT(allowed.error, HasSubstr("warning: " + why_));
  EXPECT_THAT(content_of("runs/demo/launch/config.yaml"), HasSubstr("device: auto\n"));
  const Outcome on_cpus = on_lumi("--set device=cpu");
  EXPECT_EQ(on_cpus.code, 0) << on_cpus.error;
  EXPECT_EQ(on_cpus.error, "");
}

// The program in a container is another one. It must not fall back to CPU cores.
TEST_F(LaunchOnUndrivenGpus, AContainerHasItsOwnProgram) {
  directory_.write("image.sif", "");
  const Outcome outcome = on_lumi("--container image.sif");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.error, AllOf(HasSubstr(why_), HasSubstr("the one in the container")));
  EXPECT_THAT(content_of("runs/demo/launch/config.yaml"), HasSubstr("device: hip\n"));
}

TEST_F(LaunchCommand, GpusOfAnUnknownVendorAreNotChecked) {
  const Outcome outcome = on_cluster("--nodes 2");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.error,
              AllOf(StartsWith("cluster.yaml does not say"), HasSubstr("gpu.vendor")));
}

TEST_F(LaunchCommand, MemoryThatDoesNotFit) {
  std::string small = kCluster;
  small.replace(small.find("memory_gb: 80"), 13, "memory_gb: 2.0");  // context and libraries: 2 GB
  directory_.write("cluster.yaml", small);
  EXPECT_THAT(refused(on_cluster("")), AllOf(HasSubstr("it does not fit"), HasSubstr("1.863 GiB")));
}

// llama-tiny with two layers has a checkpoint of some MB; at 10 B/s a save takes days.
TEST_F(LaunchCommand, ASaveThatTakesLongerThanTheJob) {
  std::string slow = kCluster;
  slow.replace(slow.find("storage_gb_s: 1"), 15, "storage_gb_s: 1e-6");
  directory_.write("cluster.yaml", slow);
  EXPECT_THAT(refused(on_cluster("")), HasSubstr("a save of"));
  EXPECT_THAT(refused(on_cluster("--signal 10s")), HasSubstr("--signal 10"));
}

TEST_F(LaunchCommand, WithoutSlurm) {
  const Outcome outcome =
      run_in_shell("PATH=/nowhere \"$kintsugi\" launch run.yaml --machine cluster.yaml --time 1h");
  EXPECT_THAT(refused(outcome), AllOf(HasSubstr("sbatch is not installed on this machine"),
                                      HasSubstr("--local"), HasSubstr("--print")));
}

TEST_F(LaunchCommand, AFailedSubmissionLeavesNothing) {
  program("sbatch",
          "[ \"$1\" = --version ] || { echo 'sbatch: error: Invalid account' >&2; exit 1; }");
  EXPECT_THAT(refused(on_cluster(""), 1), HasSubstr("sbatch: error: Invalid account"));
  program("sbatch", "[ \"$1\" = --version ] || echo 'job accepted'");
  EXPECT_THAT(refused(on_cluster(""), 1), HasSubstr("'job accepted' instead of a job id"));
}

TEST_F(LaunchCommand, AFailedResubmissionLeavesTheOldJob) {
  ASSERT_EQ(on_cluster("").code, 0);
  const std::string before = content_of("runs/demo/launch/job.json");
  program("sbatch", "[ \"$1\" = --version ] || exit 1");
  EXPECT_EQ(on_cluster("--nodes 2").code, 1);
  EXPECT_EQ(content_of("runs/demo/launch/job.json"), before);
  EXPECT_THAT(content_of("runs/demo/launch/job.sh"), HasSubstr("#SBATCH --nodes=1\n"));
}

TEST_F(LaunchCommand, ARunThatIsActive) {
  ASSERT_EQ(on_cluster("").code, 0);
  program("squeue", "echo '41|RUNNING|n1|1:00|1:00:00'");
  const Outcome again = on_cluster("");
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.error, AllOf(HasSubstr("active job, 41 (RUNNING)"), HasSubstr("--cancel")));
}

TEST_F(LaunchCommand, StatusAndCancel) {
  ASSERT_EQ(on_cluster("--nodes 2").code, 0);
  EXPECT_THAT(launch("--status runs/demo").out,
              AllOf(HasSubstr("2 nodes x 2 ranks"), HasSubstr("41, not in the queue"),
                    HasSubstr("not started")));
  EXPECT_THAT(launch("--cancel runs/demo").error, HasSubstr("nothing to cancel"));
  program("squeue", "echo '41|PENDING|(Resources)|0:00|1:00:00'");
  EXPECT_THAT(launch("--status runs/demo").out, HasSubstr("41 PENDING 0:00 of 1:00:00"));
  EXPECT_THAT(launch("--cancel runs/demo").out, HasSubstr("removed the job from the queue"));
  EXPECT_FALSE(fs::exists(directory_ / "runs/demo/stop"));
  program("squeue", "echo '41|RUNNING|n[1-2]|1:00|1:00:00'");
  EXPECT_THAT(launch("--cancel runs/demo").out, HasSubstr("save and stop"));
  EXPECT_TRUE(fs::exists(directory_ / "runs/demo/stop"));
  EXPECT_THAT(content_of("calls"), AllOf(HasSubstr("scancel --state=PENDING 41\n"),
                                         HasSubstr("scancel --state=RUNNING --signal=USR1 41\n"),
                                         Not(HasSubstr("scancel 41\n"))));
  EXPECT_EQ(launch("--cancel runs/demo --now").code, 0);
  EXPECT_THAT(content_of("calls"), HasSubstr("scancel 41\n"));
}

TEST_F(LaunchCommand, StatusAndCancelOfAMatrix) {
  directory_.write("run.yaml", std::string(kRunFile) + "matrix: {run.seed: [1, 2, 3, 4]}\n");
  const std::string count = (directory_ / "count").string();
  program("sbatch", "[ \"$1\" = --version ] && exit; echo x >>" + count +
                        "; echo $((49 + $(wc -l <" + count + ")))");
  ASSERT_EQ(on_cluster("").code, 0);
  EXPECT_THAT(launch("--cancel runs/demo").error, HasSubstr("nothing to cancel"));
  program("squeue",
          "echo '50|RUNNING|n1|1:00|1:00:00'; echo '51|PENDING|(Resources)|0:00|1:00:00'");
  directory_.write("runs/demo/seed-4/launch/job.json", "{");
  directory_.write("calls", "");
  const std::string table = launch("--status runs/demo").out;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
  EXPECT_THAT(table, ContainsRegex("seed-1 +50 RUNNING +not started"));
  EXPECT_THAT(table, ContainsRegex("seed-2 +51 PENDING +not started"));
  EXPECT_THAT(table, ContainsRegex("seed-3 +52 +not started"));
  EXPECT_THAT(table, ContainsRegex("seed-4 +damaged"));
  const std::string calls = content_of("calls");
  EXPECT_EQ(calls.find("squeue "), calls.rfind("squeue ")) << "one question for all runs";
  const Outcome cancelled = launch("--cancel runs/demo");
  EXPECT_EQ(cancelled.code, 1);
  EXPECT_EQ(cancelled.out, "seed-1: asked to save and stop\nseed-2: removed from the queue\n");
  EXPECT_THAT(cancelled.error, AllOf(HasSubstr("seed-4"), HasSubstr("was not cancelled")));
  EXPECT_TRUE(fs::exists(directory_ / "runs/demo/seed-1/stop"));
  EXPECT_FALSE(fs::exists(directory_ / "runs/demo/seed-2/stop"));
  EXPECT_THAT(content_of("calls"), HasSubstr("scancel --state=RUNNING --signal=USR1 50 51\n"));
}

TEST_F(LaunchCommand, SubmittingAgainForgetsTheStop) {
  ASSERT_EQ(on_cluster("").code, 0);
  directory_.write("runs/demo/stop", "");
  directory_.write("runs/demo/launch/exit_code", "75\n");
  program("sbatch", "[ \"$1\" = --version ] || echo 42");
  const Outcome again = on_cluster("");
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_THAT(again.error, HasSubstr("runs/demo/stop"));
  EXPECT_FALSE(fs::exists(directory_ / "runs/demo/stop"));
  EXPECT_FALSE(fs::exists(directory_ / "runs/demo/launch/exit_code"));
  EXPECT_EQ(job()["job_ids"], nlohmann::json({"41", "42"}));
}

TEST_F(LaunchCommand, EveryCellIsCheckedFirst) {
  directory_.write("run.yaml", std::string(kRunFile) + "matrix: {layout.tp: [1, 2, 3]}\n");
  EXPECT_THAT(refused(on_cluster("")), AllOf(HasSubstr("cell tp-3"), HasSubstr("layout.tp")));
  directory_.write("run.yaml", std::string(kRunFile) + "matrix: {layout.tpp: [1, 2]}\n");
  EXPECT_THAT(refused(on_cluster("")), HasSubstr("did you mean 'layout.tp'"));
  directory_.write("run.yaml", std::string(kRunFile) + "matrix: {run.seed: [1, 2, 3]}\n");
  EXPECT_THAT(refused(on_cluster("--max-jobs 2")),
              AllOf(HasSubstr("3 cells"), HasSubstr("--max-jobs")));
}

TEST_F(LaunchCommand, AMatrixIsSubmittedAsAWhole) {
  directory_.write("run.yaml", std::string(kRunFile) + "matrix: {run.seed: [1, 2]}\n");
  const std::string count = (directory_ / "count").string();
  program("sbatch", "[ \"$1\" = --version ] && exit; echo x >>" + count + "; n=$(wc -l <" + count +
                        "); [ $n -lt 2 ] && echo 50 || exit 1");
  EXPECT_THAT(refused(on_cluster(""), 1), HasSubstr("sbatch failed"));
  EXPECT_THAT(content_of("calls"), HasSubstr("scancel 50\n"));
  program("sbatch", "[ \"$1\" = --version ] || echo 60");
  EXPECT_EQ(on_cluster("").code, 0);
  EXPECT_TRUE(fs::exists(directory_ / "runs/demo/seed-1/launch/job.sh"));
  EXPECT_THAT(content_of("runs/demo/seed-2/launch/config.yaml"), HasSubstr("seed: 2\n"));
}

TEST_F(LaunchCommand, RunsHereAndCollects) {
  directory_.write("run.yaml",
                   std::string(kRunFile) + "device: cpu\nmatrix: {optimizer.lr: [1e-3, 1e-2]}\n");
  const Outcome outcome = launch("run.yaml --local");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(content_of("runs/demo/lr-1e-3/launch/exit_code"), "0\n");
  EXPECT_THAT(launch("--status runs/demo/lr-1e-2").out,
              AllOf(HasSubstr("state     finished, step 4 of 4"), HasSubstr("exit code 0")));
  EXPECT_EQ(launch("--collect runs/demo --csv t.csv --markdown t.md").code, 0);
  const std::string table = content_of("t.csv");
  EXPECT_THAT(table,
              AllOf(HasSubstr("\nlr-1e-2,finished,4,4,"), HasSubstr("\nlr-1e-3,finished,4,4,")));
  EXPECT_THAT(content_of("t.md"), HasSubstr("| lr-1e-3 | finished | 4 | 4 |"));
  const Outcome followed = launch("--follow runs/demo/lr-1e-3");
  EXPECT_EQ(followed.code, 0);
  EXPECT_THAT(followed.out, AllOf(HasSubstr("run directory"), HasSubstr("ended with exit code 0")));
}

TEST_F(LaunchCommand, OnTwoRanksHere) {
  directory_.write("run.yaml", std::string(kRunFile) + "device: cpu\n");
  const Outcome outcome = run_in_shell(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 \"$kintsugi\" launch run.yaml --local --ranks 2");
  if (outcome.error.find("mpirun is not installed") != std::string::npos) GTEST_SKIP();
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(content_of("runs/demo/config.yaml"), HasSubstr("dp: auto"));
}

TEST_F(LaunchCommand, ACheckpointOfAnotherModel) {
  directory_.write("run.yaml", std::string(kRunFile) + "device: cpu\n");
  ASSERT_EQ(launch("run.yaml --local").code, 0);
  const Outcome other = on_cluster("--set model.layers=3");
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.error, HasSubstr("holds another model"));
  EXPECT_THAT(content_of("calls"), Not(HasSubstr("--parsable")));
}

TEST_F(LaunchCommand, ASignalSavesTheRun) {
  directory_.write("run.yaml", std::string(kRunFile) + "device: cpu\n");
  const Outcome outcome = run_in_shell(
      "\"$kintsugi\" launch run.yaml --local --set train.steps=1000000 & pid=$!\n"
      "for i in $(seq 600); do [ -s runs/demo/metrics.jsonl ] && break; sleep 0.1; done\n"
      "kill -TERM $pid; wait $pid");
  EXPECT_EQ(outcome.code, 75) << outcome.error;
  EXPECT_EQ(content_of("runs/demo/launch/exit_code"), "75\n");
  EXPECT_TRUE(fs::exists(directory_ / "runs/demo/checkpoints/latest"));
}

TEST_F(LaunchCommand, OptionsWithoutEffect) {
  EXPECT_THAT(refused(launch("run.yaml --local --nodes 2")), HasSubstr("--nodes has no effect"));
  EXPECT_THAT(refused(launch("--status runs/demo --now")), HasSubstr("--now has no effect"));
  EXPECT_THAT(refused(on_cluster("--ranks 2")), HasSubstr("--ranks has no effect"));
  EXPECT_THAT(refused(launch("")), HasSubstr("give a configuration"));
  EXPECT_THAT(refused(launch("--follow nowhere")), HasSubstr("nowhere"));
  EXPECT_THAT(refused(launch("--collect nowhere")), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace kintsugi
