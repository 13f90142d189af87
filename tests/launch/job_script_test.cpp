#include "launch/job_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const JobPaths kPaths = {.run_dir = "/scratch/project/runs/demo",
                         .program = "/opt/kintsugi/bin/kintsugi",
                         .working_directory = "/scratch/project"};
constexpr double kHour = 3600;

std::string golden(const std::string& machine) {
  return content_of(std::filesystem::path(source_directory()) / "tests/launch/golden" /
                    (machine + ".sh"));
}

std::string script_for(const std::string& name, LaunchOptions options) {
  options.name = "demo";
  const Machine machine = load_machine(name);
  return job_script(machine, options, kPaths, describe_job(machine, options, kPaths));
}

std::vector<std::string> launcher_for(const std::string& name, LaunchOptions options) {
  options.name = "demo";
  return describe_job(load_machine(name), options, kPaths).launcher;
}

void expect_bash_reads(const std::string& script) {
  const TemporaryDirectory directory;
  directory.write("job.sh", script);
  EXPECT_EQ(std::system(("bash -n " + (directory.path() / "job.sh").string()).c_str()), 0)
      << script;
}

// Ten days of jobs that take two days, of which the last 5 minutes save and the first 2 start:
// 864000 s / (172800 - 420) s is a little more than 5, so 6 jobs.
TEST(JobScript, Lumi) {
  const std::string script = script_for(
      "lumi-g",
      {.nodes = 16, .spare_nodes = 1, .time_s = 240 * kHour, .account = "project_465000001"});
  EXPECT_EQ(script, golden("lumi-g"));
  expect_bash_reads(script);
}

TEST(JobScript, Frontier) {
  const std::string script =
      script_for("frontier", {.nodes = 128,
                              .time_s = 24 * kHour,
                              .account = "ABC123",
                              .requeue = true,
                              .signal_s = 600,
                              .exclude = "frontier00007,frontier[00010-00012]"});
  EXPECT_EQ(script, golden("frontier"));
  expect_bash_reads(script);
}

// Slingshot and RCCL. memhooks can deadlock (HPE, OLCF); MPI has host buffers only.
TEST(JobScript, MachinesOfAmdGpusHaveTheirVariables) {
  for (const char* name : {"lumi-g", "frontier"}) {
    const std::string script = script_for(name, {.nodes = 2, .account = "a"});
    EXPECT_THAT(script,
                AllOf(HasSubstr("export FI_CXI_DISABLE_HOST_REGISTER=\"1\"\n"),
                      HasSubstr("export MPICH_GPU_SUPPORT_ENABLED=\"0\"\n"),
                      HasSubstr("export NCCL_SOCKET_IFNAME=\"hsn"),
                      HasSubstr("#SBATCH --ntasks-per-node=8\n"), Not(HasSubstr("memhooks")),
                      testing::ContainsRegex("FI_MR_CACHE_MONITOR=\"(userfaultfd|kdreg2)\"")))
        << name;
    // Only Slurm and ROCR_VISIBLE_DEVICES choose GPUs.
    EXPECT_THAT(script, AllOf(HasSubstr("unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES"),
                              Not(HasSubstr("export HIP_")), Not(HasSubstr("export CUDA_"))))
        << name;
  }
  EXPECT_THAT(script_for("snellius-h100", {.nodes = 1}), Not(HasSubstr("HIP_VISIBLE_DEVICES")));
}

TEST(JobScript, JuwelsBooster) {
  const std::string script =
      script_for("juwels-booster", {.nodes = 48, .time_s = 48 * kHour, .account = "opengptx"});
  EXPECT_EQ(script, golden("juwels-booster"));
  expect_bash_reads(script);
}

TEST(JobScript, Snellius) {
  EXPECT_EQ(
      script_for("snellius-h100",
                 {.nodes = 2, .time_s = 120 * kHour, .container = "k.sif", .no_requeue = true}),
      golden("snellius-h100"));
  EXPECT_EQ(script_for("snellius-a100", {.nodes = 1, .time_s = kHour / 2}),
            golden("snellius-a100"));
}

TEST(JobScript, EveryMachineHasAScript) {
  for (const std::string& name : machine_names()) {
    const std::string script = script_for(name, {.nodes = 1, .time_s = kHour, .account = "a"});
    expect_bash_reads(script);
    EXPECT_THAT(script, HasSubstr("#SBATCH --signal=USR1@")) << name;
    EXPECT_THAT(script, HasSubstr("launch --supervise")) << name;
  }
}

TEST(JobScript, LaunchersStartTheRanks) {
  EXPECT_THAT(
      launcher_for("lumi-g", {.nodes = 2, .account = "a"}),
      ElementsAre("srun", "--nodes={nodes}", "--ntasks={ranks}", "--ntasks-per-node=8",
                  "--exclude={exclude}", "--nodelist={nodelist}", "--kill-on-bad-exit=1",
                  "--overlap", "--cpus-per-task=7",
                  "--cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,"
                  "0xfe,0xfe00,0xfe00000000,0xfe0000000000"));
  EXPECT_THAT(launcher_for("frontier", {.nodes = 2, .account = "a"}),
              AllOf(Contains("--cpus-per-task=7"), Contains("--gpus-per-task=1"),
                    Contains("--gpu-bind=closest")));
  EXPECT_THAT(launcher_for("juwels-booster", {.nodes = 2, .account = "a"}),
              Contains("--cpu-bind=mask_cpu:0xfc0000,0xfc0,0xfc0000000000,0xfc0000000"));
  const auto inside = launcher_for("snellius-h100", {.nodes = 1, .container = "/img/k.sif"});
  EXPECT_THAT(inside, AllOf(Contains("--mpi=pmix"), Contains("apptainer"), Contains("--nv"),
                            Contains("/scratch/project,/scratch/project/runs/demo")));
  EXPECT_EQ(inside.back(), "/img/k.sif");
  EXPECT_EQ(describe_job(load_machine("snellius-h100"), {.container = "k.sif"}, kPaths).program,
            "kintsugi");
}

// The plug-in does not start on one node (OLCF), so that NCCL_NET=OFI would fail there.
TEST(JobScript, OneNodeHasNoMultiNodeVariables) {
  EXPECT_THAT(script_for("frontier", {.nodes = 1, .account = "a"}), Not(HasSubstr("NCCL_NET=")));
}

TEST(JobScript, TimeLimitsFollowTheNumberOfNodes) {
  const Machine frontier = load_machine("frontier");
  EXPECT_EQ(time_limit_s(frontier, {.nodes = 91}), 2 * kHour);
  EXPECT_EQ(time_limit_s(frontier, {.nodes = 92}), 6 * kHour);
  EXPECT_EQ(time_limit_s(frontier, {.nodes = 9000}), 12 * kHour);
  EXPECT_EQ(time_limit_s(load_machine("dgx-h100"), {.nodes = 2}), std::nullopt);
  // 3 h in jobs of 2 h that train 2 h - 7 min: two of them.
  EXPECT_EQ(job_time(frontier, {.nodes = 8, .time_s = 3 * kHour}).jobs, 2);
  EXPECT_EQ(job_time(frontier, {.nodes = 8, .time_s = 2 * kHour}).jobs, 1);
  EXPECT_EQ(job_time(frontier, {.nodes = 8}).job_s, 2 * kHour);
  EXPECT_EQ(slurm_time(48 * kHour), "2-00:00:00");
  EXPECT_EQ(slurm_time(3661), "01:01:01");
}

TEST(JobScript, SaysWhatAMachineCannotDo) {
  const auto wrong = [](const std::string& machine, LaunchOptions options) {
    return user_error_of([&] { script_for(machine, options); });
  };
  EXPECT_THAT(wrong("lumi-g", {.nodes = 4}), HasSubstr("LUMI-G needs an account: give --account"));
  EXPECT_THAT(wrong("lumi-g", {.nodes = 2977, .spare_nodes = 2, .account = "a"}),
              HasSubstr("--nodes 2977 and --spare-nodes 2, but LUMI-G has 2978 nodes"));
  EXPECT_THAT(wrong("lumi-g", {.nodes = 1025, .account = "a"}),
              HasSubstr("1025 nodes for one job, but LUMI-G has jobs of at most 1024 nodes"));
  EXPECT_THAT(wrong("lumi-g", {.nodes = 2, .min_nodes = 3, .account = "a"}),
              HasSubstr("--min-nodes 3 is more than --nodes 2"));
  EXPECT_THAT(wrong("snellius-h100", {.nodes = 1, .ranks_per_node = 5}),
              HasSubstr("--ranks-per-node 5, but a node of Snellius H100 has 4 GPUs"));
  EXPECT_THAT(wrong("snellius-h100", {.requeue = true, .no_requeue = true}),
              HasSubstr("contradict"));
  EXPECT_THAT(wrong("snellius-h100", {.partition = "a;rm"}), HasSubstr("--partition 'a;rm'"));
  EXPECT_THAT(wrong("snellius-h100", {.exclude = "$(x)"}), HasSubstr("--exclude"));
  EXPECT_THAT(wrong("frontier", {.nodes = 1, .time_s = 1e9, .account = "a"}), HasSubstr("--time"));
  EXPECT_THAT(wrong("dgx-h100", {.cpu_bind = "mask_cpu:0x1"}), HasSubstr("no topology"));
  EXPECT_THAT(wrong("lumi-g", {.account = "a", .cpu_bind = "mask_cpu:0xfe"}),
              HasSubstr("--cpu-bind has 1 mask for 8 ranks per node"));
  Machine small = load_machine("lumi-g");  // fewer cores than are reserved elsewhere
  small.launch.reserved_cores = "0-399";
  small.launch.cpus_per_task = 1;
  EXPECT_THAT(user_error_of([&] { describe_job(small, {.account = "a"}, kPaths); }),
              HasSubstr("a node has 0 usable cores"));
  JobPaths spaces = kPaths;
  spaces.run_dir = "/scratch/my runs/demo";
  EXPECT_THAT(user_error_of([&] { describe_job(load_machine("laptop"), {}, spaces); }),
              AllOf(HasSubstr("/scratch/my runs/demo"), HasSubstr("choose another")));
}

TEST(JobScript, OneRankNeedsNoLauncher) {
  const JobDescription one = describe_local_job(1, "demo", kPaths);
  EXPECT_THAT(rank_command(one, {.nodes = 1}, {"train"}),
              ElementsAre("/opt/kintsugi/bin/kintsugi", "train"));
  const JobDescription four = describe_local_job(4, "demo", kPaths);
  EXPECT_THAT(rank_command(four, {.nodes = 1}, {"train"}),
              ElementsAre("mpirun", "-np", "4", "/opt/kintsugi/bin/kintsugi", "train"));
  expect_bash_reads(local_script(four, kPaths));
}

TEST(JobScript, ValuesAreNoCode) {
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's $(x)"), "'it'\\''s $(x)'");
  EXPECT_EQ(shell_quoted("/a-b_c.d"), "/a-b_c.d");
  Machine machine = load_machine("snellius-h100");
  machine.launch.environment = {{"A", "x $HOME \"`$(y) $1 \\"}};
  const std::string script = job_script(machine, {.name = "demo"}, kPaths,
                                        describe_job(machine, {.name = "demo"}, kPaths));
  EXPECT_THAT(script, HasSubstr("export A=\"x $HOME \\\"\\`\\$(y) \\$1 \\\\\"\n"));
  expect_bash_reads(script);
}

}  // namespace
}  // namespace kintsugi
