#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/libraries.h"
#include "support/fake_tree.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(EarMeter, ReadsTheNodeInJoulesAndSeconds) {
  FakeTree tree("ear", "usr/lib/libear_api.so");
  tree.set("energy", "123456789");
  tree.set("time", "4500");
  FoundMeters found;
  add_ear(tree.search(), found);
  ASSERT_EQ(found.meters.size(), 1U);
  EXPECT_EQ(found.meters[0]->identity().source, "ear");
  EXPECT_EQ(found.meters[0]->identity().scope, "node");
  EXPECT_EQ(found.meters[0]->identity().level, EnergyLevel::Node);
  const MeterReading reading = found.meters[0]->read();
  EXPECT_DOUBLE_EQ(reading.joules.value(), 123456.789);
  EXPECT_DOUBLE_EQ(reading.time_s.value(), 4.5);
}

TEST(EarMeter, SurvivesTheEndOfTheDaemon) {
  FakeTree tree("ear", "usr/lib/libear_api.so");
  FoundMeters found;
  add_ear(tree.search(), found);
  tree.set("error", "-21");  // with SIGPIPE, which would end this process
  try {
    found.meters.at(0)->read();
    FAIL();
  } catch (const Failure& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ear_energy"), HasSubstr("-21")));
  }
}

TEST(EarMeter, IsMissingWithoutTheDaemon) {
  FakeTree tree("ear", "usr/lib/libear_api.so");
  tree.set("connect", "-1");
  FoundMeters found;
  add_ear(tree.search(), found);
  EXPECT_TRUE(found.meters.empty());
  EXPECT_THAT(found.missing.at(0).reason, AllOf(HasSubstr("ear_connect"), HasSubstr("--ear=on")));
}

TEST(EarConnection, IsShared) {
  FakeTree tree("ear", "usr/lib/libear_api.so");
  {
    const auto first = Ear::connect(tree.root()), second = Ear::connect(tree.root());
    EXPECT_EQ(first, second);
    EXPECT_EQ(tree.get("connections"), "1");
    EXPECT_TRUE(first->set_gpu_clock(2, 1410));
    EXPECT_EQ(tree.get("gpufreq2"), "1410000");  // kHz
  }
  EXPECT_EQ(tree.get("connections"), "0");
}

// A job of Slurm whose commands are scripts in a directory on PATH.
class SlurmMeters : public testing::Test {
 protected:
  SlurmMeters() {
    set("PATH", directory_.path().string() + ":" + std::getenv("PATH"));
    set("SLURM_JOB_ID", "17");
    set("SLURM_STEP_ID", "3");
    set("SLURM_STEP_NUM_NODES", "1");
    script("scontrol", "echo 'AcctGatherEnergyType    = acct_gather_energy/rapl'");
    script("sstat", "[ \"$2\" = 17.3 ] && echo 5321");
  }
  ~SlurmMeters() override {
    for (const auto& [name, value] : before_)
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    const char* const old = std::getenv(name.c_str());
    before_.try_emplace(name, old != nullptr ? std::optional<std::string>(old) : std::nullopt);
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  void script(const std::string& name, const std::string& text) {
    directory_.write(name, "#!/bin/sh\n" + text + "\n");
    std::filesystem::permissions(directory_ / name, std::filesystem::perms::owner_all);
  }
  FoundMeters find() {
    FoundMeters found;
    add_slurm({}, found);
    return found;
  }
  std::string reason() {
    const FoundMeters found = find();
    EXPECT_TRUE(found.meters.empty());
    return found.missing.size() == 1 ? found.missing[0].reason : "";
  }

  TemporaryDirectory directory_;
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(SlurmMeters, ReadTheEnergyOfTheStep) {
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 1U);
  EXPECT_EQ(found.meters[0]->identity().source, "slurm");
  EXPECT_EQ(found.meters[0]->identity().scope, "node");
  EXPECT_THAT(found.meters[0]->identity().detail, AllOf(HasSubstr("17.3"), HasSubstr("rapl")));
  script("sstat", "exit 1");  // not asked again within 10 s
  const MeterReading first = found.meters[0]->read(), second = found.meters[0]->read();
  EXPECT_DOUBLE_EQ(first.joules.value(), 5321);
  EXPECT_EQ(first.scan, second.scan);
}

TEST_F(SlurmMeters, AreMissingWithTheReason) {
  script("scontrol", "echo 'AcctGatherEnergyType    = acct_gather_energy/none'");
  EXPECT_THAT(reason(), HasSubstr("AcctGatherEnergyType is none"));
  script("scontrol", "echo 'AcctGatherEnergyType    = (null)'");
  EXPECT_THAT(reason(), HasSubstr("AcctGatherEnergyType is none"));
  script("scontrol", "echo nothing");
  for (const char* nothing : {"echo 0", "echo", ":"}) {
    script("sstat", nothing);
    EXPECT_THAT(reason(), HasSubstr("no energy of step 17.3")) << nothing;
  }
  // A plug-in that subtracted without a check.
  script("sstat", "echo 18446744073709551000");
  EXPECT_THAT(reason(), HasSubstr("18446744073709551000"));
  script("sstat", "echo 'error: no such step' >&2; exit 1");
  EXPECT_THAT(reason(), AllOf(HasSubstr("exit code 1"), HasSubstr("no such step")));
}

// sstat adds up the nodes: one reader per node would count them several times.
TEST_F(SlurmMeters, AreMissingInAStepOfSeveralNodes) {
  set("SLURM_STEP_NUM_NODES", "4");
  EXPECT_THAT(reason(), AllOf(HasSubstr("4 nodes"), HasSubstr("sum")));
}

TEST_F(SlurmMeters, NeedAStep) {
  set("SLURM_STEP_ID", "");
  EXPECT_THAT(reason(), AllOf(HasSubstr("job 17"), HasSubstr("srun")));
  set("SLURM_JOB_ID", "");
  EXPECT_THAT(reason(), HasSubstr("not in a job"));
}

TEST_F(SlurmMeters, RunNoCommandForARecordedTree) {
  FoundMeters found;
  add_slurm({.root = directory_.path()}, found);
  EXPECT_TRUE(found.meters.empty());
  EXPECT_THAT(found.missing.at(0).reason, HasSubstr("recorded"));
}

// Before the first sample of a plug-in the step has no energy yet.
TEST_F(SlurmMeters, WaitForTheFirstSample) {
  script("sstat", "echo");
  EXPECT_EQ(find().meters.size(), 1U);
}

}  // namespace
}  // namespace kintsugi
