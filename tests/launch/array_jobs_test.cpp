// Job arrays for data commands: their sizes and scripts, and their submission to programs in place
// of Slurm's.
#include "launch/array_jobs.h"

#include <fmt/format.h>

#include <filesystem>

#include "support/errors.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const WorkPlan kPlan{
    .output = "dedup",
    .stages = {
        {.name = "signatures", .units = 20, .missing = {3, 13, 14, 17}},
        {.name = "pairs", .units = 14, .missing = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}},
        {.name = "clusters", .units = 1, .missing = {0}},
        {.name = "remove", .units = 20, .missing = {}}}};

TEST(ArrayJobs, TasksWithoutMissingUnitsAreLeftOut) {
  // Of ten tasks the units 3 and 13 belong to one.
  EXPECT_THAT(array_jobs(kPlan, {.command = {}, .tasks = 10}),
              ElementsAre(ArrayJob{"signatures", 10, "3-4,7"}, ArrayJob{"pairs", 10, "0-9"},
                          ArrayJob{"clusters", 1, ""}));
  EXPECT_THAT(array_jobs(kPlan, {.command = {}, .tasks = 20, .at_once = 5}),
              ElementsAre(ArrayJob{"signatures", 20, "3,13-14,17"}, ArrayJob{"pairs", 14, "0-13%5"},
                          ArrayJob{"clusters", 1, ""}));
  EXPECT_THAT(user_error_of([] { array_jobs(kPlan, {.command = {}, .tasks = 21}); }),
              AllOf(HasSubstr("--array 21, but there are fewer units (signatures 20, pairs 14"),
                    HasSubstr("give 20 or less")));
  WorkPlan later = kPlan;
  later.stages = {{.name = "signatures"}, {.name = "clusters"}};
  EXPECT_THAT(array_jobs(later, {.command = {}, .tasks = 100}),
              ElementsAre(ArrayJob{"signatures", 100, "0-99"}, ArrayJob{"clusters", 100, "0-99"}));
}

TEST(ArrayJobs, PlansAreReadAgain) {
  WorkPlan plan = kPlan;
  plan.stages[1].units = std::nullopt;
  EXPECT_EQ(work_plan_of(to_json(plan)), plan);
  for (const char* text : {"", "{}", "{\"output\": 3, \"stages\": []}", "[1]",
                           "{\"output\": \"a\", \"stages\": [{\"stage\": \"b\"}]}"})
    EXPECT_EQ(work_plan_of(text), std::nullopt) << text;
}

TEST(ArrayJobs, SizesAreRead) {
  ArrayRequest request;
  read_array_size("100%20", request);
  EXPECT_EQ(request.tasks, 100);
  EXPECT_EQ(request.at_once, 20);
  for (const char* text : {"0", "-1", "x", "10%0", "10%", "2M"})
    EXPECT_NE(user_error_of([&] { read_array_size(text, request); }), "") << text;
}

TEST(ArrayJobs, TheScript) {
  const JobPaths paths{
      .run_dir = "/scratch/it's", .program = "/opt/kintsugi", .working_directory = "/scratch"};
  const JobPaths good{
      .run_dir = "/scratch/dedup", .program = "/opt/kintsugi", .working_directory = "/scratch"};
  const LaunchOptions options{
      .time_s = 3600, .account = "p", .partition = "small", .name = "dedup"};
  const Machine machine = load_machine("lumi-g");
  const ArrayRequest request{
      .command = {"data", "dedup", "in/*.jsonl", "--output", "dedup"}, .tasks = 100, .cpus = 16};
  EXPECT_THAT(user_error_of([&] { describe_arrays(machine, options, paths); }),
              HasSubstr("does not accept in paths"));
  const std::string script = text_of(
      array_script_parts(machine, options, good, request, {"signatures", 100, "3,17"}, false));
  EXPECT_EQ(script.substr(0, script.find("\nmodule")).substr(0, script.find("\nunset")),
            R"(#!/bin/bash
# dedup-signatures on LUMI-G: 100 tasks, by kintsugi launch.
#SBATCH --job-name=dedup-signatures
#SBATCH --account=p
#SBATCH --partition=small
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --array=3,17
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --chdir=/scratch
#SBATCH --output=/scratch/dedup/launch/slurm-signatures-%A_%a.out
#SBATCH --open-mode=append
)");
  EXPECT_THAT(script, HasSubstr("/opt/kintsugi data dedup 'in/*.jsonl' --output dedup --stage "
                                "signatures --job \"$SLURM_ARRAY_TASK_ID/100\" &\n"));
  EXPECT_THAT(script, HasSubstr("scontrol requeue \"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\""));
  for (const char* gpus : {"gpus-per-node", "gres", "srun"})
    EXPECT_THAT(script, Not(HasSubstr(gpus)));
  // One process, in whole nodes as the machine says.
  ArrayRequest one = request;
  one.cpus = 0;
  const std::string alone =
      text_of(array_script_parts(machine, options, good, one, {"curate", 1, ""}, true));
  EXPECT_THAT(alone, AllOf(HasSubstr("#SBATCH --exclusive\n#SBATCH --mem=0\n"),
                           HasSubstr("slurm-curate-%j.out"), HasSubstr("--job \"0/1\" &"),
                           Not(HasSubstr("--array")), Not(HasSubstr("--stage")),
                           HasSubstr("requeue \"$SLURM_JOB_ID\"")));
  EXPECT_THAT(
      user_error_of([&] { describe_arrays(machine, {.time_s = 60, .account = "p"}, good); }),
      HasSubstr("--time 1 min 00 s is too short"));
  EXPECT_THAT(
      user_error_of([&] { describe_arrays(machine, {.time_s = 1e6, .account = "p"}, good); }),
      HasSubstr("more than a job of LUMI-G"));
}

// A script with a program in place of kintsugi, which ends with 75 when it is told to stop.
class ArrayScript : public ProgramTest {
 protected:
  Outcome run(const std::string& program, const std::string& variables) {
    directory_.write("program", "#!/bin/bash\n" + program);
    fs::permissions(directory_ / "program", fs::perms::owner_all);
    directory_.write("scontrol", "#!/bin/bash\necho \"$@\" >>requeued\n");
    fs::permissions(directory_ / "scontrol", fs::perms::owner_all);
    const JobPaths paths{.run_dir = (directory_ / "out").string(),
                         .program = (directory_ / "program").string(),
                         .working_directory = directory_.path().string()};
    directory_.write("job.sh", text_of(array_script_parts(load_machine("laptop"), {}, paths,
                                                          {.command = {"data", "curate"}},
                                                          {"curate", 4, "0-3"}, true)));
    fs::remove(directory_ / "ready");
    return run_in_shell("export SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2 PATH=\"$PWD:$PATH\"; " +
                        variables +
                        " bash job.sh & job=$!; "
                        "for i in $(seq 500); do [ -e ready ] && break; sleep 0.01; done; "
                        "[ -e told ] || kill -USR1 $job; wait $job");
  }
};

TEST_F(ArrayScript, AStoppedTaskIsQueuedAgain) {
  const std::string stops =
      "trap 'exit 75' TERM; touch ready; for i in $(seq 500); do sleep 0.01; "
      "done";
  EXPECT_EQ(run(stops, "").code, 0);
  EXPECT_EQ(content_of("requeued"), "requeue 7_2\n");
  fs::remove(directory_ / "requeued");
  EXPECT_EQ(run(stops, "SLURM_RESTART_COUNT=20").code, 75) << "not for ever";
  EXPECT_EQ(content_of("requeued"), "");
  // A failure stays one; so does a stop that nobody has asked for.
  directory_.write("told", "");
  EXPECT_EQ(run("touch ready; echo \"$@\" >words; exit 3", "").code, 3);
  EXPECT_EQ(content_of("words"), "data curate --job 2/4\n");
  EXPECT_EQ(run("touch ready; exit 75", "").code, 75);
  EXPECT_EQ(content_of("requeued"), "");
}

// ---- the command

class LaunchArrays : public ProgramTest {
 protected:
  LaunchArrays() {
    directory_.write("cpu.yaml",
                     "name: cores\nnodes: 8\n"
                     "gpu: {bf16_tflops: 1, memory_gb: 8, memory_gb_s: 10, tdp_w: 100}\n"
                     "node: {gpus: 1}\nnetwork: {gb_s: 1}\n"
                     "launch: {partition: main, limits: [{nodes: 8, time_h: 2}], "
                     "slurm_options: [--ear=on]}\n");
    for (const char* name : {"a", "b", "c"})
      directory_.write(fmt::format("{}.jsonl", name), "{\"text\": \"a b c d e f\"}\n");
    directory_.write("recipe.yaml", "steps:\n  - repair:\n");
    fs::create_directory(directory_ / "bin");
    program("sinfo", "echo 'main*|2:00:00|8'");
    program("sbatch",
            "[ \"$1\" = --version ] || { n=$(($(cat \"$0.n\" 2>/dev/null || echo 40) + 1)); "
            "echo $n >\"$0.n\"; echo $n; [ $n != 46 ] || exit 1; }");
    program("squeue", "cat \"$0.out\" 2>/dev/null");
    program("scancel", "true");
  }
  void program(const std::string& name, const std::string& commands) {
    directory_.write("bin/" + name, "#!/bin/bash\necho " + name + " \"$@\" >>" +
                                        (directory_ / "calls").string() + "\n" + commands + "\n");
    fs::permissions(directory_ / "bin" / name, fs::perms::owner_all);
  }
  Outcome launch(const std::string& arguments) {
    return run_in_shell("unset SBATCH_ACCOUNT; PATH=\"$PWD/bin:$PATH\" \"$kintsugi\" launch " +
                        arguments);
  }
  std::string refused(const std::string& arguments) {
    const Outcome outcome = launch(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << outcome.out;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    EXPECT_THAT(content_of("calls"), Not(HasSubstr("--parsable")));
    EXPECT_FALSE(fs::exists(directory_ / "out")) << arguments;
    return outcome.error;
  }
};

constexpr const char* kOnCores = "--machine cpu.yaml --time 1h ";
constexpr const char* kDedup = " -- data dedup '*.jsonl' --output out";

TEST_F(LaunchArrays, StagesFollowEachOther) {
  const Outcome printed = launch(std::string(kOnCores) + "--array 3 --explain" + kDedup);
  EXPECT_EQ(printed.code, 0) << printed.error;
  EXPECT_THAT(printed.out,
              AllOf(HasSubstr("--array=0-2\n#   <- --array"),
                    HasSubstr("--dependency=afterok:JOB_pairs"), HasSubstr("#SBATCH --ear=on")));
  EXPECT_FALSE(fs::exists(directory_ / "out"));
  const Outcome outcome = launch(std::string(kOnCores) + "--array 3%2 --after 12" + kDedup);
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(outcome.out,
            "submitted job 41: signatures, 3 tasks\nsubmitted job 42: pairs, 3 tasks\n"
            "submitted job 43: clusters, 1 task\nsubmitted job 44: remove, 3 tasks\n");
  const std::string out = (directory_ / "out/launch").string();
  EXPECT_THAT(content_of("calls"),
              HasSubstr(fmt::format(
                  "sbatch --parsable --dependency=afterok:12 --kill-on-invalid-dep=yes {0}/"
                  "signatures.sh\nsbatch --parsable --dependency=afterok:41 "
                  "--kill-on-invalid-dep=yes {0}/pairs.sh\nsbatch --parsable "
                  "--dependency=afterok:42 --kill-on-invalid-dep=yes {0}/clusters.sh\n"
                  "sbatch --parsable --dependency=afterok:43 --kill-on-invalid-dep=yes {0}/"
                  "remove.sh\n",
                  out)));
  EXPECT_THAT(content_of("out/launch/signatures.sh"), HasSubstr("#SBATCH --array=0-2%2\n"));
  EXPECT_EQ(run_in_shell("for s in out/launch/*.sh; do bash -n $s || exit 1; done").code, 0);
  // The directory is theirs while they are in the queue.
  directory_.write("bin/squeue.out", "42_[0-2]|PENDING|(Dependency)|0:00|1:00:00\n");
  const Outcome second = launch(std::string(kOnCores) + "--array 3" + kDedup);
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.error, HasSubstr("out has an active job, 42_[0-2] (PENDING)"));
  EXPECT_THAT(launch("--status out").out,
              AllOf(HasSubstr("arrays    out on cores"), HasSubstr("42_[0-2] PENDING")));
  EXPECT_THAT(launch("--cancel out").out, HasSubstr("cancelled 41, 42, 43, 44"));
  EXPECT_THAT(content_of("calls"), HasSubstr("scancel 41 42 43 44\n"));
  fs::remove(directory_ / "bin/squeue.out");
  // What is done is not submitted again.
  ASSERT_EQ(run_kintsugi("data dedup '*.jsonl' --output out --stage signatures").code, 0);
  EXPECT_THAT(launch(std::string(kOnCores) + "--array 3 --print" + kDedup).out,
              AllOf(Not(HasSubstr("out-signatures")), HasSubstr("out-pairs")));
  ASSERT_EQ(run_kintsugi("data dedup '*.jsonl' --output out").code, 0);
  const Outcome nothing = launch(std::string(kOnCores) + "--array 3" + kDedup);
  EXPECT_EQ(nothing.code, 0);
  EXPECT_THAT(nothing.out, HasSubstr("all units are done"));
}

TEST_F(LaunchArrays, WhatCannotBeSubmittedIsTakenBack) {
  directory_.write("bin/sbatch.n", "44");  // the second job fails
  const Outcome outcome = launch(std::string(kOnCores) + "--array 2" + kDedup);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(content_of("calls"), HasSubstr("scancel 45\n"));
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

TEST_F(LaunchArrays, MistakesAreOneLine) {
  const std::string cores = kOnCores;
  EXPECT_THAT(refused(cores + "--array 15" + kDedup),
              AllOf(HasSubstr("signatures 3, pairs 14"), HasSubstr("give 14 or less")));
  EXPECT_THAT(refused(cores + "--array 4 -- data curate recipe.yaml --input '*.jsonl' --output out "
                              "--shard-size 1B"),
              HasSubstr("curate 3"));
  EXPECT_THAT(refused("--array 3" + std::string(kDedup)), HasSubstr("give --machine"));
  EXPECT_THAT(refused("--machine nosuch --array 3" + std::string(kDedup)), HasSubstr("nosuch"));
  EXPECT_THAT(refused(cores + "--partition mian --array 3" + kDedup),
              HasSubstr("did you mean 'main'"));
  EXPECT_THAT(refused("--machine cpu.yaml --time 5h --array 3" + std::string(kDedup)),
              HasSubstr("--time 5 h 00 min is more than"));
  EXPECT_THAT(refused(cores + "--array 3 -- data dedup 'x*.jsonl' --output out"),
              HasSubstr("x*.jsonl"));
  EXPECT_THAT(refused(cores + "--array 3 --after 9 -- data dedup '*.jsonl' --outptu out"),
              HasSubstr("--output"));
  EXPECT_THAT(refused(cores + "--array 3 -- data tokenize x"), HasSubstr("data curate or data"));
  EXPECT_THAT(refused(cores + "--array 3" + kDedup + " --stage pairs"), HasSubstr("--stage is"));
  EXPECT_THAT(refused(cores + "--array 3" + kDedup + " --overwrite"), HasSubstr("--overwrite"));
  EXPECT_THAT(refused(cores + "--array 3 --nodes 2" + kDedup), HasSubstr("--nodes has no effect"));
  EXPECT_THAT(refused(cores + "--after 3" + kDedup), HasSubstr("without --array"));
  EXPECT_THAT(refused(cores + "--array x" + kDedup), HasSubstr("x"));
  directory_.write("bad.yaml", "steps:\n  - repaire:\n");
  EXPECT_THAT(refused(cores + "--array 1 -- data curate bad.yaml --input '*.jsonl' --output out"),
              HasSubstr("repaire"));
}

// Inputs that a job before makes.
TEST_F(LaunchArrays, InputsMayComeLater) {
  const Outcome outcome =
      launch(std::string(kOnCores) +
             "--array 20 --after 9 --print -- data dedup 'curated/*.jsonl' --output out");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("afterok:9"), HasSubstr("#SBATCH --array=0-19\n"),
                                 HasSubstr("'curated/*.jsonl'")));
}

}  // namespace
}  // namespace kintsugi
