#include "energy/power/power_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "energy/meters/find_meters.h"
#include "support/errors.h"
#include "support/fake_tree.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A GPU that draws 90 % of its limit, and does 1000 tokens in a step whose time grows as the limit
// falls. Its clock is this test's.
class SweepOfPower : public testing::Test {
 protected:
  SweepOfPower() {
    tree_.set("pci0", "0000:1b:00.0");
    tree_.set("limit0", "650000");
    tree_.set("energy0", "5000000");
    FoundMeters found;
    add_nvml(tree_.search(), found);
    meter_ = std::move(found.meters.at(0));
  }
  static double speed(double limit_w) { return 5000 * (1 - std::exp(-limit_w / 150)); }
  static double watts(double limit_w) { return 0.9 * limit_w; }

  std::int64_t step() {
    ++steps_;
    const double limit = std::stod(tree_.get("limit0")) * 1e-3, seconds = 1000 / speed(limit);
    now_s_ += seconds;
    energy_mj_ += watts(limit) * seconds * 1e3;
    tree_.set("energy0", std::to_string(static_cast<long long>(energy_mj_)));
    return 1000;
  }
  PowerSweep sweep(const SweepOptions& options) {
    PowerControl control(tree_.search());
    return sweep_power(
        control, {meter_.get()}, options,
        {.step = [this] { return step(); },
         .now_s = [this] { return now_s_; },
         .stop = [this] { return stop_after_ > 0 && steps_ >= stop_after_; },
         .progress = [this](std::int64_t done,
                            std::int64_t all) { progress_.emplace_back(done, all); }});
  }

  FakeTree tree_{"nvml", "usr/lib64/libnvidia-ml.so.1"};
  std::unique_ptr<Meter> meter_;
  double now_s_ = 100, energy_mj_ = 5000000;
  int steps_ = 0, stop_after_ = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> progress_;
};

TEST_F(SweepOfPower, MeasuresEachLimitAndFindsTheOptimum) {
  const PowerSweep result =
      sweep({.limits_w = {700, 600, 500, 400, 300, 200}, .seconds = 3, .settle_s = 0.5});
  ASSERT_EQ(result.points.size(), 6U);
  ASSERT_EQ(progress_.size(), 6U);
  EXPECT_EQ(progress_.front(), (std::pair<std::int64_t, std::int64_t>(1, 6)));
  EXPECT_EQ(progress_.back(), (std::pair<std::int64_t, std::int64_t>(6, 6)));
  EXPECT_EQ(result.not_done, "");
  double limit = 700;
  for (const SweepPoint& point : result.points) {
    EXPECT_DOUBLE_EQ(point.limit_w.value(), limit);
    EXPECT_NEAR(point.tokens_per_s, speed(limit), 1e-6 * speed(limit));
    EXPECT_NEAR(point.watts, watts(limit), 1e-3 * watts(limit));
    EXPECT_NEAR(point.j_per_token(), watts(limit) / speed(limit), 1e-3);
    EXPECT_GE(point.seconds, 3);
    limit -= 100;
  }
  // x / (1 - exp(-x)) grows with x: the lowest limit has the fewest joules. 450 W would be the
  // limit of 95 % of the speed at infinity: 500 W is the lowest one within 5 % of that at 700 W.
  EXPECT_DOUBLE_EQ(result.optimum()->limit_w.value(), 200);
  EXPECT_DOUBLE_EQ(result.fast_optimum()->limit_w.value(), 500);
  EXPECT_EQ(tree_.get("limit0"), "650000");
}

TEST_F(SweepOfPower, DividesTheRangeByDefault) {
  const PowerSweep result = sweep({.seconds = 1, .settle_s = 0.1});
  std::vector<double> limits;
  for (const SweepPoint& point : result.points) limits.push_back(*point.limit_w);
  EXPECT_THAT(limits, ElementsAre(700, 600, 500, 400, 300, 200));
}

TEST_F(SweepOfPower, LocksClocks) {
  const PowerSweep result = sweep({.clocks_mhz = {1980, 1005}, .seconds = 1, .settle_s = 0.1});
  ASSERT_EQ(result.points.size(), 2U);
  EXPECT_EQ(result.points[1].clock_mhz, 1005);
  EXPECT_DOUBLE_EQ(result.points[1].limit_w.value(), 650);
  EXPECT_EQ(tree_.get("clock0"), "unlocked");
  EXPECT_EQ(tree_.get("history"), "");
}

TEST_F(SweepOfPower, WithoutPermissionMeasuresThePresentLimitAndSaysSo) {
  tree_.set("permission", "no");
  const PowerSweep result = sweep({.limits_w = {700, 400}, .seconds = 1, .settle_s = 0.1});
  ASSERT_EQ(result.points.size(), 1U);
  EXPECT_DOUBLE_EQ(result.points[0].limit_w.value(), 650);
  EXPECT_NEAR(result.points[0].watts, watts(650), 0.5);
  EXPECT_THAT(result.not_done, AllOf(HasSubstr("700 W"), HasSubstr("Insufficient Permissions")));
}

TEST_F(SweepOfPower, ChangesNothingAsIs) {
  const PowerSweep result = sweep({.as_is = true, .seconds = 1, .settle_s = 0.1});
  ASSERT_EQ(result.points.size(), 1U);
  EXPECT_EQ(result.not_done, "");
  EXPECT_EQ(tree_.get("history"), "");
}

TEST_F(SweepOfPower, RefusesALimitBeforeItChangesAnything) {
  EXPECT_THAT(user_error_of([&] { sweep({.limits_w = {600, 900}}); }), HasSubstr("200 to 700 W"));
  EXPECT_THAT(user_error_of([&] { sweep({.clocks_mhz = {1980, 7}}); }), HasSubstr("1980 MHz"));
  EXPECT_EQ(steps_, 0);
  EXPECT_EQ(tree_.get("history"), "");
}

TEST_F(SweepOfPower, RestoresTheLimitWhenItIsStopped) {
  stop_after_ = 30;
  const PowerSweep result = sweep({.limits_w = {400, 300, 200}, .seconds = 3, .settle_s = 1});
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.points.size(), 1U);
  EXPECT_EQ(tree_.get("limit0"), "650000");
}

TEST_F(SweepOfPower, RestoresTheLimitWhenTheMeterDies) {
  const auto dying = [&] {
    PowerControl control(tree_.search());
    sweep_power(control, {meter_.get()}, {.limits_w = {400}, .seconds = 5},
                {.step =
                     [this] {
                       const std::int64_t tokens = step();
                       if (steps_ >= 20) tree_.set("energy0", "-1");
                       return tokens;
                     },
                 .now_s = [this] { return now_s_; },
                 .stop = [] { return false; }});
  };
  EXPECT_THROW(dying(), Failure);
  EXPECT_EQ(tree_.get("limit0"), "650000");
}

TEST_F(SweepOfPower, PrintsATable) {
  const std::string table =
      to_table(sweep({.limits_w = {700, 200}, .seconds = 1, .settle_s = 0.1})).text();
  EXPECT_THAT(table, AllOf(HasSubstr("J/token"), HasSubstr("within 5 %"), HasSubstr("630")));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
}

TEST(SweepOfNothing, SaysWhy) {
  PowerControl control(std::string("the power of a CPU cannot be set from here"));
  double now = 0;
  const PowerSweep result = sweep_power(control, {}, {.seconds = 2},
                                        {.step = [&] { return now += 0.5, 10; },
                                         .now_s = [&] { return now; },
                                         .stop = [] { return false; }});
  EXPECT_EQ(result.points.size(), 1U);
  EXPECT_FALSE(result.points[0].limit_w.has_value());
  EXPECT_DOUBLE_EQ(result.points[0].tokens_per_s, 20);
  EXPECT_EQ(result.not_done, "the power of a CPU cannot be set from here");
}

}  // namespace
}  // namespace kintsugi
