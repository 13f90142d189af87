#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "support/fake_tree.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class NvmlMeters : public testing::Test {
 protected:
  // Four GPUs in the order of NVML, with 1000, 2000, 3000 and 4000 J.
  NvmlMeters() {
    for (int i = 0; i < 4; ++i) {
      tree_.set("pci" + std::to_string(i), kAddresses[i]);
      tree_.set("energy" + std::to_string(i), std::to_string(1000000 * (i + 1)));
      tree_.set("power" + std::to_string(i), std::to_string(100000 + i * 500));
    }
  }
  FoundMeters find(const std::vector<std::string>& gpus = {}) {
    FoundMeters found;
    add_nvml(gpus.empty() ? tree_.search() : tree_.search(gpus), found);
    return found;
  }

  static constexpr const char* kAddresses[] = {"0000:1b:00.0", "0000:43:00.0", "0000:9a:00.0",
                                               "0001:cb:00.0"};
  FakeTree tree_{"nvml", "usr/lib64/libnvidia-ml.so.1"};
};

TEST_F(NvmlMeters, ReadJoulesAndWattsOfAllGpusInTheOrderOfNvml) {
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 4U);
  EXPECT_TRUE(found.missing.empty());
  for (std::size_t i = 0; i < 4; ++i) {
    const MeterIdentity& identity = found.meters[i]->identity();
    EXPECT_EQ(identity.source, "nvml");
    EXPECT_EQ(identity.scope, "gpu" + std::to_string(i));
    EXPECT_EQ(identity.level, EnergyLevel::Gpu);
    EXPECT_EQ(identity.kind, MeterKind::Counter);
    EXPECT_THAT(identity.detail, AllOf(HasSubstr("FAKE H200"), HasSubstr(kAddresses[i])));
    const MeterReading reading = found.meters[i]->read();
    EXPECT_DOUBLE_EQ(reading.joules.value(), 1000.0 * static_cast<double>(i + 1));
    EXPECT_DOUBLE_EQ(reading.watts.value(), 100 + 0.5 * static_cast<double>(i));
  }
}

// CUDA_VISIBLE_DEVICES=3,0 makes the GPU at 0001:cb:00.0 CUDA's device 0.
TEST_F(NvmlMeters, MatchGpusByPciAddressAndNotByIndex) {
  setenv("CUDA_VISIBLE_DEVICES", "3,0", 1);
  const FoundMeters found = find({"0001:CB:00.0", "0000:1b:00.0"});
  unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_EQ(found.meters.size(), 2U);
  EXPECT_EQ(found.meters[0]->identity().scope, "gpu0");
  EXPECT_DOUBLE_EQ(found.meters[0]->read().joules.value(), 4000);
  EXPECT_EQ(found.meters[1]->identity().scope, "gpu1");
  EXPECT_DOUBLE_EQ(found.meters[1]->read().joules.value(), 1000);
}

TEST_F(NvmlMeters, NameTheGpuThatIsNotThere) {
  const FoundMeters found = find({"0000:77:00.0", "0000:43:00.0"});
  ASSERT_EQ(found.meters.size(), 1U);
  EXPECT_EQ(found.meters[0]->identity().scope, "gpu1");
  EXPECT_DOUBLE_EQ(found.meters[0]->read().joules.value(), 2000);
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_EQ(found.missing[0].scope, "gpu0");
  EXPECT_THAT(found.missing[0].reason,
              testing::AllOf(HasSubstr("0000:77:00.0"), HasSubstr("Not Found")));
}

// The reader gives what the counter says; MeterTotal notices that it went backwards.
TEST_F(NvmlMeters, PassOnACounterThatStartedAgain) {
  const FoundMeters found = find({"0000:1b:00.0"});
  EXPECT_DOUBLE_EQ(found.meters.at(0)->read().joules.value(), 1000);
  tree_.set("energy0", "250");
  EXPECT_DOUBLE_EQ(found.meters.at(0)->read().joules.value(), 0.25);
}

TEST_F(NvmlMeters, FailWithTheReasonWhenAGpuIsLost) {
  const FoundMeters found = find();
  tree_.set("error2", "15");
  EXPECT_NO_THROW(found.meters.at(1)->read());
  try {
    found.meters.at(2)->read();
    FAIL();
  } catch (const Failure& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("0000:9a:00.0"), HasSubstr("GPU is lost")));
  }
  tree_.set("error2", "0");
  EXPECT_DOUBLE_EQ(found.meters[2]->read().joules.value(), 3000);
}

TEST_F(NvmlMeters, IntegratePowerWhereThereIsNoCounter) {
  tree_.set("energy1", "-1");  // not supported
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 4U);
  EXPECT_EQ(found.meters[0]->identity().kind, MeterKind::Counter);
  EXPECT_EQ(found.meters[1]->identity().kind, MeterKind::Power);
  const MeterReading reading = found.meters[1]->read();
  EXPECT_FALSE(reading.joules.has_value());
  EXPECT_DOUBLE_EQ(reading.watts.value(), 100.5);
}

TEST_F(NvmlMeters, HaveNoMeterWithoutCounterAndPower) {
  tree_.set("energy1", "-1");
  tree_.set("power1", "-1");
  tree_.set("power0", "-1");  // the counter is enough
  const FoundMeters found = find();
  ASSERT_EQ(found.meters.size(), 3U);
  EXPECT_FALSE(found.meters[0]->read().watts.has_value());
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_EQ(found.missing[0].scope, "gpu1");
  EXPECT_THAT(found.missing[0].reason, testing::AllOf(HasSubstr("Not Supported")));
}

TEST_F(NvmlMeters, DoNotMeterInstancesOfAGpu) {
  tree_.set("mig3", "1");
  const FoundMeters found = find();
  EXPECT_EQ(found.meters.size(), 3U);
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_THAT(found.missing[0].reason, AllOf(HasSubstr("0001:cb:00.0"), HasSubstr("MIG")));
}

TEST_F(NvmlMeters, ShutTheLibraryDownWithTheLastMeter) {
  {
    FoundMeters found = find();
    EXPECT_EQ(tree_.get("initialized"), "1");
    found.meters.resize(1);
    EXPECT_EQ(tree_.get("initialized"), "1");
    EXPECT_NO_THROW(found.meters[0]->read());
  }
  EXPECT_EQ(tree_.get("initialized"), "0");
}

TEST_F(NvmlMeters, SayThatTheDriverIsNotLoaded) {
  tree_.set("init", "9");
  const FoundMeters found = find();
  EXPECT_TRUE(found.meters.empty());
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_THAT(found.missing[0].reason, HasSubstr("Driver Not Loaded"));
}

TEST(NvmlLibrary, OfAnOldDriverHasNoCounter) {
  FakeTree tree("nvml_old", "usr/lib/libnvidia-ml.so.1");
  tree.set("pci0", "0000:1b:00.0");
  tree.set("power0", "70500");
  FoundMeters found;
  add_nvml(tree.search(), found);
  ASSERT_EQ(found.meters.size(), 1U);
  EXPECT_EQ(found.meters[0]->identity().kind, MeterKind::Power);
  EXPECT_DOUBLE_EQ(found.meters[0]->read().watts.value(), 70.5);
}

TEST(NvmlLibrary, IsLookedForOnlyBelowTheRoot) {
  TemporaryDirectory empty;
  FoundMeters found;
  add_nvml({.root = empty.path()}, found);
  EXPECT_TRUE(found.meters.empty());
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_EQ(found.missing[0].source, "nvml");
  EXPECT_EQ(found.missing[0].reason, "libnvidia-ml.so.1 is not installed");
}

TEST(NvmlLibrary, ThatIsNoLibraryIsReported) {
  TemporaryDirectory tree;
  std::filesystem::create_directories(tree / "lib");
  tree.write("lib/libnvidia-ml.so.1", "not an ELF file");
  FoundMeters found;
  add_nvml({.root = tree.path()}, found);
  EXPECT_TRUE(found.meters.empty());
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_THAT(found.missing[0].reason,
              AllOf(HasSubstr("cannot load libnvidia-ml.so.1"), Not(HasSubstr("\n"))));
}

// The search ends, and the other sources are there.
TEST(NvmlLibrary, ThatNeverAnswersIsMissing) {
  FakeTree tree("nvml", "usr/lib64/libnvidia-ml.so.1");
  tree.set("pci0", "0000:10:00.0");
  tree.set("energy0", "1000");
  tree.set("hang", "yes");
  MeterSearch search = tree.search();
  search.node_w = 500;
  const FoundMeters found = find_meters(search, 0.2);
  ASSERT_EQ(found.meters.size(), 1U);
  EXPECT_EQ(found.meters[0]->identity().source, "estimate");
  const auto nvml = std::find_if(found.missing.begin(), found.missing.end(),
                                 [](const auto& one) { return one.source == "nvml"; });
  ASSERT_NE(nvml, found.missing.end());
  EXPECT_EQ(nvml->reason, "no answer in 0.2 s");
  tree.set("hang", "no");  // lets its thread end
}

// A run on the CPUs of a node with GPUs.
TEST(NvmlLibrary, IsNotAskedByARunWithoutGpus) {
  FakeTree tree("nvml", "usr/lib64/libnvidia-ml.so.1");
  tree.set("pci0", "0000:10:00.0");
  tree.set("energy0", "1000");
  EXPECT_EQ(find_meters(tree.search()).meters.size(), 1U);
  const FoundMeters found = find_meters(tree.search(std::vector<std::string>()));
  EXPECT_TRUE(found.meters.empty());
  EXPECT_EQ(std::count_if(found.missing.begin(), found.missing.end(),
                          [](const auto& one) { return one.reason == "the run uses no GPU"; }),
            2);
}

}  // namespace
}  // namespace kintsugi
