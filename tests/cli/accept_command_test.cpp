// kintsugi accept with mpirun: on a good set-up, and with faults that it must name.
#include <sched.h>

#include <nlohmann/json.hpp>

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
  EXPECT_EQ(passed["losses"], 12) << "dp, zero 1 to 3, tp twice, cp, pp three times, ep twice";
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
    EXPECT_GE(bytes, planned) << one;  // the rest: what the backend needs for itself
    EXPECT_LT(bytes, planned + (64 << 20)) << one;
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
  const Outcome outcome = accept("--ranks 1 --budget 1s");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.error;
  const json found = report();
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
  expect_mistake("--ranks 2 --launch no-such-launcher", "no-such-launcher");
  fs::create_directory(directory_ / "keep");
  directory_.write("keep/notes.txt", "mine");
  EXPECT_EQ(run_kintsugi("accept --ranks 1 --output keep --overwrite").code, 2);
  EXPECT_EQ(content_of("keep/notes.txt"), "mine");
}

TEST_F(AcceptCommand, ReportsRanksThatCannotStart) {
  const Outcome outcome = accept("--ranks 2 --launch 'exit 3; '");
  EXPECT_EQ(outcome.code, 1);
  const std::vector<json> failed = failures(report(), "machine");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].at("text").get<std::string>(), HasSubstr("exit code 3"));
}

}  // namespace
}  // namespace kintsugi
