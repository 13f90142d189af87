#include <gtest/gtest.h>

#include <string>

#include "optim/skip_step.h"

namespace kintsugi {
namespace {

// The state after a sequence of steps: '+' is a good step, '!' an overflow.
struct Case {
  const char* steps;
  double scale;
  std::int64_t good_steps;
  std::int64_t hysteresis;
};

// Megatron's rules, computed by hand for: initial 1024, minimum 64, growth after 3 good steps,
// hysteresis 2.
constexpr Case kCases[] = {
    {"", 1024, 0, 2},
    {"+", 1024, 1, 2},
    {"++", 1024, 2, 2},
    {"+++", 2048, 0, 2},          // growth
    {"++++++", 4096, 0, 2},       // twice
    {"!", 1024, 0, 1},            // the first overflow only decrements the hysteresis
    {"!!", 512, 0, 0},            // the second halves the scale
    {"!!!", 256, 0, -1},          // and so does each one after it
    {"++!", 1024, 0, 1},          // an overflow resets the count of good steps
    {"++!++", 1024, 2, 1},        // so two more do not grow the scale
    {"++!+++", 2048, 0, 2},       // three do; growth resets the hysteresis
    {"!+!", 512, 0, 0},           // a good step does not reset it
    {"!+++!", 2048, 0, 1},        // after growth, one overflow is free again
    {"!!++!", 256, 0, -1},        // without growth it is not free
    {"!!+++", 1024, 0, 2},        // down once, up once
    {"!!!!!", 64, 0, -3},         // 512, 256, 128, 64
    {"!!!!!!!!!", 64, 0, -7},     // never below the minimum
    {"!!!!!!!!!+++", 128, 0, 2},  // and up again from there
    {"+!+!+!", 256, 0, -1},
};

TEST(LossScalerTest, FollowsMegatronsRules) {
  for (const Case& c : kCases) {
    LossScaler scaler({.initial = 1024, .minimum = 64, .growth_interval = 3, .hysteresis = 2});
    for (const char* step = c.steps; *step != '\0'; ++step) scaler.update(*step == '!');
    EXPECT_EQ(scaler.scale(), c.scale) << c.steps;
    EXPECT_EQ(scaler.state().good_steps, c.good_steps) << c.steps;
    EXPECT_EQ(scaler.state().hysteresis, c.hysteresis) << c.steps;
  }
}

TEST(LossScalerTest, Defaults) {
  LossScaler scaler{LossScaleOptions{}};
  EXPECT_TRUE(scaler.dynamic());
  EXPECT_EQ(scaler.scale(), 4294967296.0);
  for (int step = 0; step < 999; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 4294967296.0);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8589934592.0);
  for (int step = 0; step < 100; ++step) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1.0);
}

TEST(LossScalerTest, OneOverflowIsEnoughWithoutHysteresis) {
  LossScaler scaler({.initial = 16, .minimum = 1, .growth_interval = 3, .hysteresis = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8.0);
}

TEST(LossScalerTest, IsFixedAtOneWhereItIsNotNeeded) {
  LossScaler scaler;
  for (int step = 0; step < 5000; ++step) scaler.update(step % 7 == 0);
  EXPECT_FALSE(scaler.dynamic());
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_EQ(scaler.state(), LossScaler().state());
}

// A run that is interrupted at any step continues identically.
TEST(LossScalerTest, ARestoredStateContinues) {
  const LossScaleOptions options{
      .initial = 1024, .minimum = 1, .growth_interval = 3, .hysteresis = 2};
  const std::string steps = "++!+++!!+!++++++!+!!+++";
  LossScaler whole(options);
  for (const char step : steps) whole.update(step == '!');
  for (std::size_t split = 0; split <= steps.size(); ++split) {
    LossScaler first(options);
    for (std::size_t i = 0; i < split; ++i) first.update(steps[i] == '!');
    LossScaler second(options);
    second.restore(first.state());
    for (std::size_t i = split; i < steps.size(); ++i) second.update(steps[i] == '!');
    EXPECT_EQ(second.state(), whole.state()) << split;
  }
}

}  // namespace
}  // namespace kintsugi
