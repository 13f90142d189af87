#include "train/startup.h"

#include <gtest/gtest.h>

#include <regex>

namespace kintsugi {
namespace {

TEST(Startup, SaysWhereTheTimeWent) {
  Startup startup;
  startup.mark("init ranks");
  startup.mark("open run");
  startup.mark("initialize weights");
  startup.mark("open run");  // added to the existing entry
  startup.mark("first step");
  EXPECT_TRUE(std::regex_match(
      startup.summary(), std::regex(R"(\d+\.\d\d s: init ranks \d+\.\d\d, open run \d+\.\d\d, )"
                                    R"(initialize weights \d+\.\d\d, first step \d+\.\d\d)")))
      << startup.summary();
}

TEST(Startup, EveryStageKnowsTheEnergy) {
  Startup startup;
  startup.set_energy({.machine = "LUMI-G", .planned = {{.seconds = 2}}});
  const Startup next = startup.of_next_stage();
  EXPECT_EQ(next.energy().machine, "LUMI-G");
  EXPECT_EQ(next.energy().planned.size(), 1u);
}

}  // namespace
}  // namespace kintsugi
