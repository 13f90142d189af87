// kintsugi accept with mpirun: on a good set-up, and with faults that it must name.
#include <sched.h>

#include <nlohmann/json.hpp>

#include "backend/gpu/gpu_backend.h"
#include "plan/machines/machine.h"
#include "support/mpirun.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class AcceptCommand : public ProgramTest {
 protected:
  static bool has_mpirun() { return std::system("command -v mpirun > /dev/null 2>&1") == 0; }
  Outcome accept(const std::string& arguments) {
    return run_in_shell(std::string("export ") + kOpenMpi +
                        "; $kintsugi accept --output report --device cpu " + arguments);
  }
  json report() { return json::parse(content_of("report/acceptance.json")); }
  // The checks of a part that failed.
  static std::vector<json> failures(const json& report, const std::string& part) {
    std::vector<json> found;
    for (const json& check : report.at("checks"))
      if (check.at("part") == part && check.at("verdict") == "FAIL") found.push_back(check);
    return found;
  }
  void expect_mistake(const std::string& arguments, const std::string& text) {
    const Outcome outcome = accept(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.error, AllOf(StartsWith("error: "), HasSubstr(text)));
    EXPECT_FALSE(fs::exists(directory_ / "report"));
  }
};

TEST_F(AcceptCommand, PassesOnTwoRanks) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  const Outcome outcome = accept("--ranks 2 --share-gpu --parts losses,recovery,calibrate");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("\npass: "));
  const json found = report();
  EXPECT_EQ(found.at("verdict"), "pass");
  EXPECT_EQ(found.at("ranks"), 2);
  std::map<std::string, int> passed;
  for (const json& check : found.at("checks"))
    if (check.at("verdict") == "pass") ++passed[check.at("part")];
  EXPECT_EQ(passed["losses"], 13)
      << "dp, zero 1 to 3, tp twice, cp twice, pp three times, ep twice";
  EXPECT_EQ(passed["groups"], 1);
  EXPECT_EQ(passed["recovery"], 4) << "noticed, named, restarted, same bits";
  EXPECT_THAT(found.at("left_out"), Contains(json("speed: not in --parts")));
  const std::string page = content_of("report/acceptance.html");
  EXPECT_THAT(page, AllOf(StartsWith("<!doctype html>"), HasSubstr("same bits")));
  const Machine machine = parse_machine(content_of("report/machine.yaml"), "machine.yaml");
  EXPECT_EQ(machine.node.gpus, 2);
  EXPECT_GT(machine.node.link_gb_s, 0);
  EXPECT_FALSE(fs::exists(directory_ / "report-trials/runs"));
  EXPECT_THAT(accept("--ranks 2").error, HasSubstr("exists")) << "without --overwrite";
}

TEST_F(AcceptCommand, PutsStepsAndMemoryBesideThePlan) {
  const Outcome outcome = accept("--ranks 1 --machine laptop --parts calibrate,speed");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.error;
  const json speed = report().at("speed");
  ASSERT_EQ(speed.size(), 15u) << "three models in five layouts";
  int measured = 0;
  for (const json& one : speed) {
    if (!one.at("not_measured").is_null()) continue;
    ++measured;
    const double step_s = one.at("step_s"), planned_s = one.at("planned_s");
    EXPECT_NEAR(one.at("measured_by_planned").get<double>(), step_s / planned_s, 1e-9);
    EXPECT_GT(one.at("calibrated_s"), 0);
    const double bytes = one.at("memory_bytes"), planned = one.at("planned_bytes");
    EXPECT_NEAR(bytes, planned, 0.05 * planned) << one;
  }
  EXPECT_EQ(measured, 3) << "one rank has one layout";
}

TEST_F(AcceptCommand, NamesARankInAWrongGroup) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  const Outcome outcome = accept(
      "--ranks 4 --parts calibrate --launch 'KINTSUGI_WRONG_RANK=3 KINTSUGI_WRONG_COLOR=2 "
      "mpirun -x LD_PRELOAD=" +
      fake_library("wrong_group") + " -np {ranks}'");
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.error;
  const std::vector<json> failed = failures(report(), "groups");
  ASSERT_FALSE(failed.empty()) << outcome.out;
  std::vector<std::string> groups;
  for (const json& check : failed) {
    EXPECT_EQ(check.at("ranks"), json({3})) << check;
    EXPECT_FALSE(check.at("remedy").is_null());
    groups.push_back(check.at("group"));
  }
  EXPECT_THAT(groups, Contains("shard"));
}

TEST_F(AcceptCommand, NamesRanksOnTheSameCore) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  if (CPU_COUNT(&set) < 2) GTEST_SKIP() << "there is one core only";
  std::size_t core = 0;
  while (!CPU_ISSET(core, &set)) ++core;
  const Outcome outcome =
      accept("--ranks 2 --parts calibrate --launch 'mpirun --bind-to none -np {ranks} taskset -c " +
             std::to_string(core) + "'");
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.error;
  const std::vector<json> failed = failures(report(), "machine");
  ASSERT_EQ(failed.size(), 1u) << outcome.out;
  EXPECT_EQ(failed[0].at("name"), "binding");
  EXPECT_EQ(failed[0].at("ranks"), json({0, 1}));
}

TEST_F(AcceptCommand, LeavesOutWhatDoesNotFitIntoItsTime) {
  // The probe uses all of it.
  const Outcome outcome = accept("--ranks 1 --budget 3s --launch 'sleep 3;'");
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.error;
  EXPECT_THAT(outcome.out,
              HasSubstr("\nincomplete (not complete: calibrate, pairs, recovery, speed)"));
  const json found = report();
  EXPECT_EQ(found.at("verdict"), "incomplete");
  EXPECT_EQ(found.at("not_complete"), json({"calibrate", "pairs", "recovery", "speed"}));
  EXPECT_THAT(found.at("left_out").dump(), AllOf(HasSubstr("recovery: no time within"),
                                                 HasSubstr("speed, llama-tiny, data, ZeRO 1")));
  EXPECT_EQ(found.at("speed").size(), 12u) << "only those that cannot run on one rank";
}

TEST_F(AcceptCommand, SaysWhatIsWrongWithItsCommand) {
  const Outcome outcome = run_kintsugi("accept --ranks 2");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("give --output"));
  expect_mistake("", "give --ranks");
  expect_mistake("--ranks 3 --ranks-per-node 2", "whole nodes");
  expect_mistake("--ranks 1 --parts losses,sped", "sped");
  expect_mistake("--ranks 1 --machine lumi-x", "lumi-x");
  expect_mistake("--ranks 2 --launch 'no-such-launcher {ranks}'", "no-such-launcher");
  expect_mistake("--ranks 2 --launch 'mpirun -np 2'", "has no {ranks}");
  if (gpu_platform() != "cuda") {
    EXPECT_THAT(run_kintsugi("accept --ranks 1 --output report --device cuda").error,
                HasSubstr("--device cuda: this program cannot use it: it was built without CUDA"));
  }
  fs::create_directory(directory_ / "keep");
  directory_.write("keep/notes.txt", "mine");
  EXPECT_EQ(run_kintsugi("accept --ranks 1 --output keep --overwrite").code, 2);
  EXPECT_EQ(content_of("keep/notes.txt"), "mine");
  const Outcome nowhere = run_kintsugi("accept --ranks 1 --output /proc/report");
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.error, HasSubstr("cannot create "));
}

TEST_F(AcceptCommand, ReportsRanksThatCannotStart) {
  const Outcome outcome = accept("--ranks 2 --overwrite --launch 'exit 3; {ranks}'");
  EXPECT_EQ(outcome.code, 1);
  const std::vector<json> failed = failures(report(), "machine");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].at("text").get<std::string>(), HasSubstr("exit code 3"));
  // A test never continues in the trials of another one unasked.
  fs::remove_all(directory_ / "report");
  expect_mistake("--ranks 2 --launch 'exit 3; {ranks}'", "report-trials exists");
}

TEST_F(AcceptCommand, RanksThatMeasureNothingFail) {
  EXPECT_EQ(accept("--ranks 2 --launch 'true {ranks}'").code, 1);
  const std::vector<json> failed = failures(report(), "machine");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].at("text").get<std::string>(), HasSubstr("no rank has written"));
  EXPECT_EQ(report().at("device"), "unknown device");
}

// As srun without an MPI plug-in does: each rank is alone.
TEST_F(AcceptCommand, RanksThatDoNotMeetFail) {
  EXPECT_EQ(accept("--ranks 2 --launch ': {ranks};'").code, 1);
  const std::vector<json> failed = failures(report(), "machine");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].at("name"), "ranks");
  EXPECT_THAT(failed[0].at("text").get<std::string>(), HasSubstr("1 rank together instead of 2"));
}

TEST_F(AcceptCommand, AStopKeepsWhatWasMeasured) {
  // After the probe, every trial waits for the signal of the second one.
  const Outcome outcome = accept(
      "--ranks 1 --parts calibrate --launch 'if [ -e second ]; then kill -TERM $PPID; sleep 60; "
      "fi; touch second;'");
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.error;
  const json found = report();
  EXPECT_EQ(found.at("verdict"), "incomplete");
  EXPECT_EQ(found.at("not_complete"), json({"calibrate"}));
  EXPECT_THAT(found.at("left_out").dump(), HasSubstr("stopped by SIGTERM"));
  EXPECT_TRUE(failures(found, "calibrate").empty());
  EXPECT_GT(found.at("checks").size(), 1u);
}

// At the end of a job runs stop by themselves, with this code.
TEST_F(AcceptCommand, ATrialThatWasStoppedHasNotFailed) {
  const Outcome outcome =
      accept("--ranks 1 --parts calibrate --launch '[ ! -e second ] || exit 75; touch second;'");
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.error;
  EXPECT_EQ(report().at("verdict"), "incomplete");
  EXPECT_THAT(report().at("left_out").dump(), HasSubstr("calibrate, device: it was stopped"));
}

TEST_F(AcceptCommand, AProbeFollowsTheRuleOfOutputs) {
  directory_.write("facts.json", "mine");
  const Outcome refused = run_kintsugi("accept --device cpu --probe facts.json");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.error, HasSubstr("--probe"));
  EXPECT_EQ(content_of("facts.json"), "mine");
  EXPECT_EQ(run_kintsugi("accept --device cpu --probe nowhere/facts.json").code, 2);
  EXPECT_EQ(run_kintsugi("accept --device cpu --probe facts.json --overwrite").code, 0);
  EXPECT_EQ(json::parse(content_of("facts.json")).size(), 1u);
}

}  // namespace
}  // namespace kintsugi
