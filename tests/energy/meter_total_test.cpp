#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "energy/meters/meter.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

MeterTotal counter(double range_j = 0) {
  return MeterTotal({.source = "rapl", .scope = "package0", .range_j = range_j});
}
MeterTotal power() {
  return MeterTotal({.source = "hwmon", .scope = "cpu", .kind = MeterKind::Power});
}
MeterReading joules(double value) { return {.joules = value}; }
MeterReading watts(double value) { return {.watts = value}; }

TEST(MeterTotal, ACounterGivesItsDifference) {
  MeterTotal total = counter();
  total.add(joules(1000), 10);
  EXPECT_EQ(total.joules(), 0);
  EXPECT_FALSE(total.watts());
  total.add(joules(1100), 10.5);
  total.add(joules(1400), 11);
  EXPECT_DOUBLE_EQ(total.joules(), 400);
  EXPECT_DOUBLE_EQ(total.covered_s(), 1);
  EXPECT_DOUBLE_EQ(*total.watts(), 600);  // 300 J in the last half second
  EXPECT_EQ(total.missed_s(11), 0);
  EXPECT_EQ(total.note(), "");
}

// A RAPL counter of 32 bits and 61 µJ at 250 W, read once a second, over two wrap-arounds.
TEST(MeterTotal, ACounterIsFollowedThroughWrapArounds) {
  const double range = 262143.328850;
  MeterTotal total = counter(range);
  const int seconds = 2200;
  for (int i = 0; i <= seconds; ++i) total.add(joules(std::fmod(200000 + 250.0 * i, range)), i);
  EXPECT_NEAR(total.joules(), 250.0 * seconds, 1e-6);
  EXPECT_DOUBLE_EQ(total.covered_s(), seconds);
  EXPECT_EQ(total.note(), "");
}

TEST(MeterTotal, ADecreaseThatIsNoWrapAroundIsNotCovered) {
  MeterTotal total = counter(262143);
  total.add(joules(200000), 0);
  total.add(joules(200100), 1);
  total.add(joules(100000), 2);  // 162143 J more would be 162 kW
  total.add(joules(100100), 3);
  EXPECT_DOUBLE_EQ(total.joules(), 200);
  EXPECT_DOUBLE_EQ(total.covered_s(), 2);
  EXPECT_DOUBLE_EQ(total.missed_s(3), 1);
  EXPECT_EQ(total.note(), "the counter went backwards");
}

// 20 kW over 20 s would allow a whole turn of the counter, but a step back is far likelier.
TEST(MeterTotal, ASmallStepBackIsNoWrapAroundAfterALongInterval) {
  MeterTotal total = counter(262143);
  total.add(joules(200000), 0);
  total.add(joules(199990), 20);
  EXPECT_EQ(total.joules(), 0);
  EXPECT_THAT(total.note(), HasSubstr("went backwards"));
}

TEST(MeterTotal, ACounterThatMayHaveWrappedTwiceIsNotCovered) {
  MeterTotal total = counter(262143);
  total.add(joules(1000), 0);
  total.add(joules(2000), 600);
  EXPECT_EQ(total.joules(), 0);
  EXPECT_EQ(total.covered_s(), 0);
  EXPECT_THAT(total.note(), HasSubstr("wrapped around more than once"));
  MeterTotal endless = counter(0);
  endless.add(joules(1000), 0);
  endless.add(joules(2000), 600);
  EXPECT_EQ(endless.joules(), 1000);
}

TEST(MeterTotal, ARestartIsNotCovered) {
  MeterTotal total = counter();
  total.add(joules(5000), 0);
  total.add(joules(5100), 1);
  total.add(joules(30), 2);
  total.add(joules(130), 3);
  total.add(joules(10), 4);
  EXPECT_DOUBLE_EQ(total.joules(), 200);
  EXPECT_DOUBLE_EQ(total.missed_s(4), 2);
  EXPECT_EQ(total.note(), "the counter was restarted (2 times)");
}

// The new count may be above the old one.
TEST(MeterTotal, ARestartThatTheSourceReportsIsNotCovered) {
  MeterTotal total = counter();
  total.add({.joules = 100, .restarts = 7, .scan = 1}, 0);
  total.add({.joules = 200, .restarts = 7, .scan = 2}, 1);
  total.add({.joules = 450, .restarts = 8, .scan = 2}, 2);
  total.add({.joules = 500, .restarts = 8, .scan = 3}, 3);
  EXPECT_DOUBLE_EQ(total.joules(), 150);
  EXPECT_DOUBLE_EQ(total.covered_s(), 2);
  EXPECT_EQ(total.note(), "the counter was restarted");
}

TEST(MeterTotal, ACounterGoesOnWhileItCannotBeRead) {
  MeterTotal total = counter();
  total.add(joules(100), 0);
  total.add(joules(200), 1);
  total.add_failure("energy: permission denied", 2);
  EXPECT_FALSE(total.watts());
  EXPECT_THAT(total.note(), HasSubstr("energy: permission denied"));
  total.add_failure("energy: permission denied", 8);
  EXPECT_DOUBLE_EQ(total.missed_s(8), 7);
  total.add(joules(1100), 10);
  EXPECT_DOUBLE_EQ(total.joules(), 1000);
  EXPECT_DOUBLE_EQ(total.covered_s(), 10);
  EXPECT_EQ(total.missed_s(10), 0);
  EXPECT_EQ(total.note(), "");
}

TEST(MeterTotal, TimeBeforeTheFirstReadingIsMissed) {
  MeterTotal total = counter();
  total.add_failure("energy: no such file", 5);
  total.add(joules(100), 7);
  total.add(joules(200), 8);
  EXPECT_DOUBLE_EQ(total.covered_s(), 1);
  EXPECT_DOUBLE_EQ(total.missed_s(8), 2);
  EXPECT_THAT(total.note(), AllOf(HasSubstr("2.0 s late"), HasSubstr("no such file")));
}

TEST(MeterTotal, PowerIsIntegratedByTrapezoids) {
  MeterTotal total = power();
  for (int i = 0; i <= 10; ++i) total.add(watts(100 + 10 * i), i);  // the integral of 100 + 10 t
  EXPECT_DOUBLE_EQ(total.joules(), 100 * 10 + 10 * 10 * 10 / 2);
  EXPECT_DOUBLE_EQ(total.covered_s(), 10);
  EXPECT_DOUBLE_EQ(*total.watts(), 200);
  EXPECT_EQ(total.note(), "");
}

TEST(MeterTotal, PowerIsNotIntegratedOverLongGaps) {
  MeterTotal total = power();
  total.add(watts(100), 0);
  total.add_failure("gone", 1);
  total.add(watts(100), 2);  // a short one
  EXPECT_DOUBLE_EQ(total.joules(), 200);
  EXPECT_EQ(total.note(), "");
  total.add_failure("gone again", 3);
  total.add(watts(100), 6);
  total.add(watts(100), 7);
  EXPECT_DOUBLE_EQ(total.joules(), 300);
  EXPECT_DOUBLE_EQ(total.missed_s(7), 4);
  EXPECT_THAT(total.note(), AllOf(HasSubstr("4.0 s"), HasSubstr("gone again")));
}

TEST(MeterTotal, TheSameScanIsNoNewReading) {
  MeterTotal total = counter();
  total.add({.joules = 100, .scan = 1}, 0);
  total.add({.joules = 200, .scan = 2}, 1);
  total.add({.joules = 999, .scan = 2}, 1.5);
  EXPECT_DOUBLE_EQ(total.joules(), 100);
  EXPECT_EQ(total.missed_s(1.5), 0);  // the next scan can still cover it
  EXPECT_EQ(total.note(), "");
  total.add({.joules = 999, .scan = 2}, 4.1);
  EXPECT_EQ(total.note(), "readings are stale: freshness did not change for 3.1 s");
  EXPECT_DOUBLE_EQ(total.missed_s(4.1), 3.1);
  EXPECT_FALSE(total.watts());
  total.add({.joules = 700, .scan = 3}, 6);  // counters go on counting
  EXPECT_DOUBLE_EQ(total.joules(), 600);
  EXPECT_DOUBLE_EQ(total.covered_s(), 6);
  EXPECT_THAT(total.note(), AllOf(HasSubstr("stale"), Not(HasSubstr("times"))));
}

TEST(MeterTotal, PowerOfTheSameScanIsNotIntegrated) {
  MeterTotal total = power();
  for (int i = 0; i <= 10; ++i) total.add({.watts = 100, .scan = i < 2 ? i : 1}, i);
  EXPECT_DOUBLE_EQ(total.joules(), 100);
  EXPECT_DOUBLE_EQ(total.missed_s(10), 9);
}

TEST(MeterTotal, TheHardwaresClockCounts) {
  MeterTotal total = counter();
  total.add({.joules = 0, .time_s = 1e9}, 0.08);  // read 80 ms late
  total.add({.joules = 100, .time_s = 1e9 + 1}, 1);
  EXPECT_NEAR(total.covered_s(), 1, 1e-6);
  EXPECT_NEAR(*total.watts(), 100, 1e-3);
  total.add({.joules = 200, .time_s = 3}, 2);  // set to another time
  EXPECT_NEAR(total.covered_s(), 2, 0.1);
  total.add({.joules = 300, .time_s = 1e6}, 3);
  EXPECT_NEAR(total.covered_s(), 3, 0.1);
  EXPECT_DOUBLE_EQ(total.joules(), 300);
}

// Such a clock must not make time disappear, second after second.
TEST(MeterTotal, AHardwareClockWithAnotherRateIsNotFollowed) {
  for (const double rate : {0.0, 0.6, 1.5}) {
    MeterTotal total = counter();
    for (int i = 0; i <= 1000; ++i)
      total.add({.joules = 10.0 * i, .time_s = 1e9 + rate * 0.1 * i, .scan = i}, 0.1 * i);
    EXPECT_NEAR(total.covered_s(), 100, 1.2) << rate;
    EXPECT_LE(total.missed_s(100), 1.2) << rate;
    EXPECT_DOUBLE_EQ(total.joules(), 10000);
  }
}

// Stamps of a source that updates once per second are up to a second old when they are read.
TEST(MeterTotal, StampsOfASlowSourceGiveItsPower) {
  MeterTotal total(MeterIdentity{.source = "pm_counters", .scope = "node"});
  for (int i = 0; i <= 22; ++i) {  // read every 0.2 s, beginning 0.9 s after an update
    const double now_s = 0.2 * i;
    const double updated = std::floor(now_s + 0.9);
    total.add({.joules = 1000 * updated, .time_s = 5000 + updated}, now_s);
  }
  EXPECT_DOUBLE_EQ(total.joules(), 5000);
  EXPECT_NEAR(total.joules() / total.covered_s(), 1000, 1);
}

TEST(MeterTotal, ACounterThatDoesNotMoveIsNotCovered) {
  MeterTotal total = counter();
  total.add(joules(100), 0);
  total.add(joules(200), 1);
  total.add(joules(200), 3);
  EXPECT_EQ(total.missed_s(3), 0);  // it may only be slow
  EXPECT_EQ(total.note(), "");
  for (const double now : {4.0, 5.0, 6.0}) total.add(joules(200), now);
  EXPECT_EQ(total.note(), "the counter did not move for 5.0 s");
  EXPECT_DOUBLE_EQ(total.missed_s(6), 5);
  EXPECT_FALSE(total.watts());
  total.add(joules(300), 7);
  EXPECT_DOUBLE_EQ(total.joules(), 200);
  EXPECT_DOUBLE_EQ(total.covered_s(), 2);
  EXPECT_DOUBLE_EQ(total.missed_s(7), 5);
}

// As Slurm's: the same reading for half a minute is not stale, for more than a minute it is.
TEST(MeterTotal, ASlowSourceHasMoreTime) {
  MeterTotal total({.source = "slurm", .scope = "node", .update_s = 30});
  total.add({.joules = 1000, .scan = 1}, 0);
  total.add({.joules = 1000, .scan = 1}, 20);
  total.add({.joules = 4000, .scan = 2}, 30);
  total.add({.joules = 4000, .scan = 2}, 85);
  EXPECT_DOUBLE_EQ(total.joules(), 3000);
  EXPECT_DOUBLE_EQ(total.covered_s(), 30);
  EXPECT_DOUBLE_EQ(total.fresh_s(), 30);
  EXPECT_DOUBLE_EQ(total.watts().value(), 100);
  EXPECT_EQ(total.missed_s(59), 0);
  EXPECT_EQ(total.note(), "");
  total.add({.joules = 4000, .scan = 2}, 91);
  EXPECT_FALSE(total.watts());
  EXPECT_THAT(total.note(), HasSubstr("stale"));
}

TEST(MeterTotal, ACounterThatNeverMovedCoversNothing) {
  MeterTotal total = counter();
  total.add(joules(100), 0);
  total.add(joules(100), 1);
  EXPECT_EQ(total.covered_s(), 0);
  EXPECT_DOUBLE_EQ(total.missed_s(1), 1);
}

TEST(MeterTotal, HostileValuesDoNotReachTheSum) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {std::nan(""), infinity, -infinity, -1.0, 1e300, 1e16}) {
    MeterTotal total = counter(262143), from_power = power();
    total.add(joules(100), 0);
    total.add(joules(value), 1);
    EXPECT_THAT(total.note(), HasSubstr("not plausible")) << value;
    total.add(joules(200), 2);
    EXPECT_DOUBLE_EQ(total.joules(), 100) << value;
    from_power.add(watts(100), 0);
    from_power.add(watts(value), 1);
    from_power.add(watts(100), 2);
    EXPECT_DOUBLE_EQ(from_power.joules(), 200) << value;
  }
  MeterTotal total = counter();
  total.add(joules(100), 0);
  total.add(joules(1e12), 1);
  total.add({.joules = 1e12 + 50, .watts = std::nan(""), .time_s = std::nan("")}, 2);
  EXPECT_DOUBLE_EQ(total.joules(), 50);
  EXPECT_DOUBLE_EQ(*total.watts(), 50);
  EXPECT_THAT(total.note(), HasSubstr("jumped by"));
}

TEST(MeterTotal, AReadingWithoutItsValueIsAFailure) {
  MeterTotal total = counter();
  total.add({.watts = 100}, 0);
  EXPECT_THAT(total.note(), HasSubstr("no joules"));
  MeterTotal from_power = power();
  from_power.add({.joules = 100}, 0);
  EXPECT_THAT(from_power.note(), HasSubstr("no watts"));
}

TEST(MeterTotal, AnEstimateSaysSo) {
  MeterTotal total({.source = "estimate", .kind = MeterKind::Estimate, .detail = "30000 W"});
  total.add(watts(30000), 0);
  total.add(watts(30000), 60);
  EXPECT_DOUBLE_EQ(total.joules(), 1.8e6);
  EXPECT_EQ(total.missed_s(60), 0);
  EXPECT_EQ(total.note(), "an estimate: 30000 W");
}

}  // namespace
}  // namespace kintsugi
