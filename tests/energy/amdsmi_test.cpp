#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "support/fake_tree.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two modules of two dies, as MI250X: the second die of each reports 0.
class AmdSmiMeters : public testing::Test {
 protected:
  AmdSmiMeters() {
    const char* addresses[] = {"0000:c1:00.0", "0000:c6:00.0", "0000:c9:00.0", "0000:ce:00.0"};
    const char* counts[] = {"1000000000", "0", "9007199254740993", "0"};
    for (int i = 0; i < 4; ++i) {
      tree_.set("pci" + std::to_string(i), addresses[i]);
      tree_.set("count" + std::to_string(i), counts[i]);
      tree_.set("time" + std::to_string(i), "5000000000");
      tree_.set("watts" + std::to_string(i), i % 2 == 0 ? "420" : "0");
    }
  }
  FoundMeters find(const std::vector<std::string>& gpus = {}) {
    FoundMeters found;
    add_amdsmi(gpus.empty() ? tree_.search() : tree_.search(gpus), found);
    return found;
  }

  FakeTree tree_{"amdsmi", "opt/rocm/lib/libamd_smi.so"};
};

TEST_F(AmdSmiMeters, ReadTheEnergyOfAModuleOnce) {
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 2U);
  EXPECT_EQ(found.meters[0]->identity().source, "amdsmi");
  EXPECT_EQ(found.meters[0]->identity().scope, "gpu0");
  EXPECT_EQ(found.meters[1]->identity().scope, "gpu2");
  const MeterReading reading = found.meters[0]->read();
  // 1e9 units of 15.3 uJ, where 15.3 is a float.
  EXPECT_NEAR(reading.joules.value(), 15300, 0.01);
  EXPECT_DOUBLE_EQ(reading.time_s.value(), 5);
  EXPECT_DOUBLE_EQ(reading.watts.value(), 420);
  // Large counts are multiplied in double, not in float or in whole numbers.
  EXPECT_NEAR(found.meters[1]->read().joules.value() / (9007199254740993.0 * 15.3e-6), 1, 1e-7);
  ASSERT_EQ(found.missing.size(), 2U);
  EXPECT_EQ(found.missing[0].scope, "gpu1");
  EXPECT_EQ(found.missing[0].reason, "second die of the module; its energy is in gpu0");
  EXPECT_TRUE(found.missing[0].counted);
}

// Each of four ranks names its own die: the joules of a module are there once, and all of them.
TEST_F(AmdSmiMeters, FourRanksOnTwoModulesCountEachModuleOnce) {
  const MeterSearch search =
      tree_.search({"0000:ce:00.0", "0000:c9:00.0", "0000:c6:00.0", "0000:c1:00.0"});
  FoundMeters found;
  add_amdsmi(search, found);
  const LevelMeters chosen = choose_meters(found, search, {})[EnergyLevel::Gpu];
  EXPECT_EQ(chosen.source, "amdsmi");
  EXPECT_EQ(chosen.uncovered, "");
  double joules = 0;
  for (const std::size_t i : chosen.meters) joules += found.meters[i]->read().joules.value();
  EXPECT_NEAR(joules / (15300 + 9007199254740993.0 * 15.3e-6), 1, 1e-7);
}

// Its energy is in a counter that a run without the first die must not claim.
TEST_F(AmdSmiMeters, ASecondDieAloneIsNotMetered) {
  const MeterSearch search = tree_.search({"0000:c1:00.0", "0000:ce:00.0"});
  FoundMeters found;
  add_amdsmi(search, found);
  ASSERT_EQ(found.meters.size(), 1U);
  EXPECT_THAT(choose_meters(found, search, {})[EnergyLevel::Gpu].uncovered,
              AllOf(HasSubstr("gpu1: second die"), HasSubstr("0000:c9:00.0")));
}

TEST_F(AmdSmiMeters, ACounterThatDoesNotCountIsReplacedByPower) {
  tree_.set("count0", "0");
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 2U);
  EXPECT_EQ(found.meters[0]->identity().kind, MeterKind::Power);
  EXPECT_EQ(found.meters[1]->identity().kind, MeterKind::Counter);
}

TEST_F(AmdSmiMeters, AreNotOpenedBesideRccl) {
  MeterSearch search = tree_.search();
  search.rccl = true;
  FoundMeters found;
  add_amdsmi(search, found);
  EXPECT_TRUE(found.meters.empty());
  EXPECT_THAT(found.missing.at(0).reason, HasSubstr("RCCL"));
  EXPECT_EQ(tree_.get("initialized"), "");
}

TEST_F(AmdSmiMeters, MatchGpusByPciAddress) {
  const FoundMeters found = find({"0000:C9:00.0", "0000:c1:00.0", "0000:01:00.0"});
  ASSERT_EQ(found.meters.size(), 2U);
  EXPECT_EQ(found.meters[1]->identity().scope, "gpu1");
  EXPECT_NEAR(found.meters[1]->read().joules.value(), 15300, 0.01);
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_EQ(found.missing[0].scope, "gpu2");
  EXPECT_THAT(found.missing[0].reason, testing::AllOf(HasSubstr("0000:01:00.0")));
}

TEST_F(AmdSmiMeters, ReadThePowerOfOldAndNewVersions) {
  for (const char* version : {"23", "24", "25", "26"})
    for (const char* average : {"no", "yes"}) {
      tree_.set("version", version);
      tree_.set("average", average);
      EXPECT_DOUBLE_EQ(find().meters.at(0)->read().watts.value(), 420) << version << average;
    }
}

TEST_F(AmdSmiMeters, IntegratePowerWhereTheCounterIsNotSupported) {
  tree_.set("energy_error0", "2");
  tree_.set("energy_error1", "2");
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 2U);
  EXPECT_EQ(found.meters[0]->identity().kind, MeterKind::Power);
  EXPECT_FALSE(found.meters[0]->read().joules.has_value());
  EXPECT_TRUE(found.missing.at(0).counted);  // the second die
  tree_.set("watts0", "0");
  EXPECT_THAT(find().missing.at(0).reason, HasSubstr("NOT_SUPPORTED"));
}

TEST_F(AmdSmiMeters, ShutTheLibraryDownWithTheLastMeter) {
  {
    const FoundMeters found = find();
    EXPECT_EQ(tree_.get("initialized"), "1");
  }
  EXPECT_EQ(tree_.get("initialized"), "0");
}

TEST_F(AmdSmiMeters, ReportALibraryThatDoesNotStart) {
  tree_.set("init", "2");
  const FoundMeters found = find();
  EXPECT_TRUE(found.meters.empty());
  EXPECT_THAT(found.missing.at(0).reason,
              AllOf(HasSubstr("amdsmi_init"), HasSubstr("NOT_SUPPORTED")));
}

}  // namespace
}  // namespace kintsugi
