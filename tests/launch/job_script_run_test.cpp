// Runs the scripts with programs that record how they are called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>

#include "launch/job_script.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class RunJobScript : public testing::Test {
 protected:
  RunJobScript() {
    fs::create_directories(path("bin"));
    fs::create_directories(path("run/launch"));
    for (const char* name : {"scancel", "scontrol"})
      program(name, std::string("echo ") + name + " \"$@\" >>" + path("calls"));
    program("squeue", "echo squeue \"$@\" >>" + path("calls") + "; echo 2026-11-16T12:00:00");
  }

  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  void program(const std::string& name, const std::string& commands) {
    directory_.write("bin/" + name, "#!/bin/bash\n" + commands + "\n");
    fs::permissions(path("bin/" + name), fs::perms::owner_all);
  }
  // The supervisor ends with these codes, one after the other; 137: it kills itself.
  void supervisor(const std::string& codes, const std::string& commands = "") {
    directory_.write("codes", codes);
    program("kintsugi", commands + "\necho kintsugi \"$@\" end=$KINTSUGI_END_TIME >>" +
                            path("calls") + "\nread code rest <" + path("codes") +
                            "\necho $rest >" + path("codes") +
                            "\n[ $code -eq 137 ] && kill -KILL $$\nexit $code");
  }
  // Returns the exit code of the script for element `task` of 0 to 2.
  int run(LaunchOptions options, int task = 0) {
    options.name = "x";
    const Machine machine = load_machine("snellius-h100");
    const JobPaths paths{.run_dir = path("run"),
                         .program = path("bin/kintsugi"),
                         .working_directory = directory_.path().string()};
    directory_.write("job.sh",
                     job_script(machine, options, paths, describe_job(machine, options, paths)));
    const std::string command =
        "cd '" + directory_.path().string() + "' && TZ=UTC PATH=\"" + path("bin") +
        ":$PATH\" SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_MAX=2 "
        "SLURM_ARRAY_TASK_ID=" +
        std::to_string(task) + " bash job.sh";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string calls() const { return content_of(directory_.path() / "calls"); }
  std::string end() const { return content_of(directory_.path() / "run/launch/exit_code"); }

  TemporaryDirectory directory_;
};

const LaunchOptions kOneJob = {.nodes = 1, .time_s = 3600};
const LaunchOptions kRequeued = {.nodes = 1, .time_s = 3600, .requeue = true};
const LaunchOptions kChained = {.nodes = 1, .time_s = 350.0 * 3600};  // three jobs of 120 h

// Slurm may be configured to requeue all jobs that exit with 75.
TEST_F(RunJobScript, HandsOnTheCode) {
  for (const int code : {0, 2, 3, 4, 75, 130, 143}) {
    supervisor(std::to_string(code));
    EXPECT_EQ(run(kOneJob), code == 75 ? 0 : code);
    EXPECT_EQ(end(), std::to_string(code) + "\n");
  }
  EXPECT_THAT(calls(), HasSubstr("kintsugi launch --supervise " + path("run") + " "));
  EXPECT_THAT(calls(), Not(HasSubstr("scontrol")));
  EXPECT_THAT(calls(), Not(HasSubstr("scancel")));
}

// date --utc --date='2026-11-16 12:00' +%s
TEST_F(RunJobScript, ExportsTheEndOfTheJob) {
  supervisor("0");
  run(kOneJob);
  EXPECT_THAT(calls(), HasSubstr("squeue --noheader --jobs=7 --format=%e\n"));
  EXPECT_THAT(calls(), HasSubstr("end=1794830400\n"));
  supervisor("0");
  run(kChained);
  EXPECT_THAT(calls(), HasSubstr("squeue --noheader --jobs=5_0 --format=%e\n"));
}

TEST_F(RunJobScript, AnUnknownEndIsLeftOut) {
  for (const char* answer : {"exit 1", "echo N/A", "echo"}) {
    fs::remove(path("calls"));
    program("squeue", answer);
    supervisor("0");
    EXPECT_EQ(run(kOneJob), 0);
    EXPECT_THAT(calls(), HasSubstr("end=\n")) << answer;
  }
}

TEST_F(RunJobScript, ASupervisorThatWasKilledIsStartedAgain) {
  supervisor("137 137 3");
  EXPECT_EQ(run(kOneJob), 3);
  std::size_t starts = 0;
  const std::string all = calls();
  for (std::size_t at = 0; (at = all.find("kintsugi launch", at)) != std::string::npos; ++at)
    ++starts;
  EXPECT_EQ(starts, 3u);
}

TEST_F(RunJobScript, RequeuesAStoppedRun) {
  supervisor("75");
  EXPECT_EQ(run(kRequeued), 0);
  EXPECT_THAT(calls(), HasSubstr("scontrol requeue 7\n"));
  EXPECT_EQ(end(), "") << "the job goes on";
}

// The supervisor ends with 1 if too few nodes are left.
TEST_F(RunJobScript, RequeuesAJobWithTooFewNodes) {
  for (const LaunchOptions& options : {kOneJob, kRequeued}) {
    fs::remove(path("calls"));
    supervisor("1");
    EXPECT_EQ(run(options), 1);
    EXPECT_THAT(calls(), HasSubstr("scontrol requeue 7\n"));
    EXPECT_EQ(end(), "") << "the job goes on";
  }
  LaunchOptions never = kOneJob;
  never.no_requeue = true;
  fs::remove(path("calls"));
  supervisor("1");
  EXPECT_EQ(run(never), 1);
  EXPECT_THAT(calls(), Not(HasSubstr("scontrol")));
  EXPECT_EQ(end(), "1\n");
}

TEST_F(RunJobScript, RequeuesNothingElse) {
  for (const char* code : {"0", "2", "3", "4"}) {
    supervisor(code);
    run(kRequeued);
    EXPECT_EQ(end(), code + std::string("\n"));
  }
  directory_.write("run/stop", "");
  supervisor("75");
  run(kRequeued);
  EXPECT_EQ(end(), "75\n");
  fs::remove(path("run/stop"));
  // The run has removed the stop file that it obeyed, and the supervisor has told so.
  supervisor("75", "touch " + path("run/launch/asked_to_stop"));
  run(kRequeued);
  EXPECT_EQ(end(), "75\n");
  EXPECT_THAT(calls(), Not(HasSubstr("scontrol")));
  // What an earlier job was asked for says nothing about this one.
  supervisor("75");
  run(kRequeued);
  EXPECT_THAT(calls(), HasSubstr("scontrol requeue 7\n"));
}

TEST_F(RunJobScript, TheChainGoesOnAfterAStopOrAFailure) {
  for (const char* code : {"1", "75"}) {
    supervisor(code);
    EXPECT_EQ(run(kChained, 1), code == std::string("75") ? 0 : 1);
    EXPECT_EQ(end(), "");
  }
  EXPECT_THAT(calls(), Not(HasSubstr("scancel")));
  supervisor("75");
  run(kChained, 2);  // the last one
  EXPECT_EQ(end(), "75\n");
}

TEST_F(RunJobScript, TheChainEndsWithTheRun) {
  for (const char* code : {"0", "2", "3", "4"}) {
    fs::remove(path("calls"));
    supervisor(code);
    EXPECT_EQ(run(kChained), std::atoi(code));
    EXPECT_THAT(calls(), HasSubstr("scancel --state=PENDING 5\n")) << code;
    EXPECT_EQ(end(), code + std::string("\n"));
  }
  fs::remove(path("calls"));
  directory_.write("run/stop", "");
  supervisor("75");
  run(kChained);
  EXPECT_THAT(calls(), HasSubstr("scancel --state=PENDING 5\n"));
}

}  // namespace
}  // namespace kintsugi
