// kintsugi energy.
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "energy/sysfs_tree.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class EnergyCommand : public ProgramTest {
 protected:
  Outcome energy(const std::string& arguments) {
    return run_kintsugi("energy --root '" + tree_.root().string() + "' " + arguments);
  }
  json energy_json(const std::string& arguments) {
    const Outcome outcome = energy("--json " + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return json::parse(outcome.out);
  }
  static json meter(const json& result, const std::string& source, const std::string& scope) {
    for (const json& one : result.at("meters"))
      if (one.at("source") == source && one.at("scope") == scope) return one;
    ADD_FAILURE() << "no meter " << source << " " << scope << " in " << result.dump(2);
    return {};
  }
  SysfsTree tree_;
};

// Calls `write` with 1, 2, … until the object is destroyed: the hardware.
class Ticking {
 public:
  explicit Ticking(std::function<void(int)> write)
      : thread_([this, write = std::move(write)] {
          for (int tick = 1; !stop_; ++tick) {
            write(tick);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
        }) {}
  ~Ticking() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST_F(EnergyCommand, NeedsACommandAfterTheDashes) {
  const Outcome outcome = energy("--");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("a command is missing after --"));
}

TEST_F(EnergyCommand, MeasuresCountersThatAdvance) {
  tree_.write_rapl("intel-rapl:0", "package-0", 262140);
  tree_.write_rapl("intel-rapl:1", "package-1", 5);
  const Ticking hardware([&](int tick) {  // package 0 wraps around in this window
    tree_.write_rapl("intel-rapl:0", "package-0", std::fmod(262140 + 2.0 * tick, 262143.328850));
    tree_.write_rapl("intel-rapl:1", "package-1", 5 + 1.0 * tick);
  });
  const json result = energy_json("--seconds 0.5 --interval 0.05");
  EXPECT_GE(result.at("seconds"), 0.5);
  const json first = meter(result, "rapl", "package0"), second = meter(result, "rapl", "package1");
  ASSERT_TRUE(first.at("joules").is_number()) << result.dump(2);
  ASSERT_TRUE(second.at("joules").is_number()) << result.dump(2);
  EXPECT_TRUE(first.at("note").is_null());
  // The number of ticks depends on the machine; both counters had the same, but for one at the
  // ends.
  EXPECT_GT(second.at("joules"), 0);
  EXPECT_NEAR(first.at("joules").get<double>(), 2 * second.at("joules").get<double>(), 4.01);
  EXPECT_NEAR(result.at("levels").at("cpu").at("joules").get<double>(),
              first.at("joules").get<double>() + second.at("joules").get<double>(), 1e-6);
  EXPECT_GT(first.at("watts"), 0);
}

TEST_F(EnergyCommand, ARecordedTreeHasNoJoules) {
  tree_.write_pm_counters({}, 5);
  const json result = energy_json("--seconds 0.3");
  EXPECT_EQ(result.at("meters").size(), 7u);
  for (const json& one : result.at("meters")) {
    EXPECT_TRUE(one.at("joules").is_null());
    EXPECT_TRUE(one.at("watts").is_null());
    EXPECT_THAT(one.at("note").get<std::string>(), HasSubstr("0.0 of 0.3 s were metered: 0 J"));
  }
  EXPECT_TRUE(result.at("levels").at("node").at("joules").is_null());
}

TEST_F(EnergyCommand, PowerIsIntegrated) {
  const std::string hwmon = "sys/class/drm/card0/device/hwmon/hwmon0/";
  tree_.write(hwmon + "name", "amdgpu\n");
  tree_.write(hwmon + "power1_average", "300000000\n");
  const json result = energy_json("--seconds 0.4 --interval 0.1");
  const json gpu = meter(result, "amdsmi", "gpu0");
  EXPECT_NEAR(gpu.at("joules").get<double>(), 300 * result.at("seconds").get<double>(), 5);
  EXPECT_NEAR(gpu.at("watts").get<double>(), 300, 1e-6);
}

TEST_F(EnergyCommand, WhatCannotBeReadIsNullWithTheReason) {
  tree_.write_rapl("intel-rapl:0", "package-0", 5);
  tree_.remove("sys/class/powercap/intel-rapl:0/energy_uj");
  tree_.make_directory("sys/class/powercap/intel-rapl:0/energy_uj");
  const json result = energy_json("--seconds 0.1");
  const json package = meter(result, "rapl", "package0");
  EXPECT_TRUE(package.at("joules").is_null());
  EXPECT_THAT(package.at("note").get<std::string>(), HasSubstr("is a directory"));
}

TEST_F(EnergyCommand, OnASharedNodeOnlyGpusHaveJoules) {
  tree_.write("sys/devices/system/cpu/online", "0-127\n");
  const std::string hwmon = "sys/class/drm/card0/device/hwmon/hwmon0/";
  tree_.write(hwmon + "name", "amdgpu\n");
  tree_.write(hwmon + "power1_average", "300000000\n");
  const Outcome outcome = run_in_shell(
      "SLURM_JOB_ID=7 SLURM_JOB_CPUS_PER_NODE='32(x2)' \"$kintsugi\" energy --json --seconds 0.2 "
      "--node-w 500 --root '" +
      tree_.root().string() + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const json result = json::parse(outcome.out);
  EXPECT_TRUE(meter(result, "amdsmi", "gpu0").at("joules").is_number());
  const json node = meter(result, "estimate", "node");
  EXPECT_TRUE(node.at("joules").is_null());
  EXPECT_THAT(node.at("note").get<std::string>(), HasSubstr("the job has 32 of 128 CPUs"));
}

TEST_F(EnergyCommand, ListsMetersAndReasons) {
  tree_.write_pm_counters({.modules = 1}, 5);
  const Outcome text = energy("--list");
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_THAT(text.out, AllOf(HasSubstr("accel0_energy"), HasSubstr("rapl: "), HasSubstr("node")));
  const json result = energy_json("--list");
  EXPECT_EQ(meter(result, "pm_counters", "gpu0").at("kind"), "counter");
  EXPECT_EQ(result.at("levels").at("node").at("source"), "pm_counters");
  EXPECT_FALSE(result.at("missing").empty());
}

TEST_F(EnergyCommand, NothingMeteredIsNoError) {
  const Outcome outcome = energy("--seconds 0.05");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, AllOf(StartsWith("no meter was found"), HasSubstr("pm_counters")));
  EXPECT_THAT(energy_json("--seconds 0.05").at("meters"), IsEmpty());
}

TEST_F(EnergyCommand, ARootThatDoesNotExistIsAMistake) {
  const Outcome outcome = run_kintsugi("energy --root nowhere");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.error, AllOf(StartsWith("error: "), HasSubstr("nowhere")));
  for (const char* arguments : {"--list --seconds 3", "--list -- true", "--seconds 1 -- true",
                                "--interval 0", "--interval 60", "--seconds 0"})
    EXPECT_EQ(energy(arguments).code, 2) << arguments;
}

TEST_F(EnergyCommand, RunsACommandWithItsInputAndOutput) {
  tree_.write("sys/class/hwmon/hwmon0/name", "power_meter\n");
  tree_.write("sys/class/hwmon/hwmon0/power1_average", "600000000\n");
  tree_.write("sys/class/hwmon/hwmon0/power1_oem_info", "Module Power Socket 0\n");
  const Outcome outcome =
      run_kintsugi("energy --root '" + tree_.root().string() +
                       "' --interval 0.02 -- sh -c 'cat; echo \"$0\" \"$@\"; sleep 0.1; exit 7' "
                       "'[a,b]' -l --json -- --seconds",
                   "hello\n");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(outcome.out, "hello\n[a,b] -l --json -- --seconds\n");
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("hwmon"), HasSubstr("600.0"), Not(HasSubstr("{"))));
}

TEST_F(EnergyCommand, TheExitCodeIsThatOfAShell) {
  EXPECT_EQ(energy("-- true").code, 0);
  const Outcome absent = energy("-- ./no-such-command");
  EXPECT_EQ(absent.code, 127);
  EXPECT_THAT(absent.error, HasSubstr("cannot run './no-such-command': command not found"));
  EXPECT_EQ(energy("-- /").code, 126);
  EXPECT_EQ(energy("-- sh -c 'kill -9 $$'").code, 128 + 9);
  // Our program ignores SIGPIPE; the command does not.
  EXPECT_EQ(energy("-- sh -c 'kill -PIPE $$'").code, 128 + 13);
}

TEST_F(EnergyCommand, SignalsReachTheCommand) {
  const Outcome outcome = run_in_shell(
      "\"$kintsugi\" energy --node-w 100 -- sh -c 'trap \"echo got TERM; exit 9\" TERM; touch "
      "ready; while true; do sleep 0.02; done' & process=$!\n"
      "while [ ! -e ready ] && kill -0 $process; do sleep 0.02; done; kill -TERM $process; wait "
      "$process");
  EXPECT_EQ(outcome.code, 9);
  EXPECT_EQ(outcome.out, "got TERM\n");
  EXPECT_THAT(outcome.error, HasSubstr("estimate"));
}

// The value of a misspelt option is not a command.
TEST_F(EnergyCommand, AMisspeltOptionRunsNothing) {
  for (const char* arguments : {"energy --secnds 3", "energy --secnds touch made"}) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.error, testing::HasSubstr("did you mean '--seconds'"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "made"));
}

}  // namespace
}  // namespace kintsugi
