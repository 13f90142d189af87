#include "energy/power/power_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr PowerSettings kSettings = {.power_limit_w = 500, .baseline_steps = 8};

TEST(PowerPolicy, ChangesThePowerOnceAndComparesEqualNumbersOfSteps) {
  int applied = 0;
  PowerPolicy policy(kSettings, [&] { ++applied; });
  const std::int64_t settling = policy.settling_steps();
  ASSERT_EQ(settling, 2);
  std::vector<std::string> lines;
  for (std::int64_t step = 101; step <= 130; ++step) {
    const std::int64_t number = step - 100;
    // The first steps, and those after the change, are slow and must not count.
    const bool settled = (number > 2 && number <= 10) || number > 12;
    const bool limited = number > 10;
    EXPECT_EQ(applied, limited ? 1 : 0) << number;
    const double seconds = !settled ? 100 : limited ? 0.5 : 0.4;
    const double joules = !settled ? 1e6 : limited ? 250 : 280;
    const std::string line = policy.after_step(step, 1000, seconds, joules);
    if (!line.empty()) lines.push_back(line);
  }
  EXPECT_EQ(applied, 1);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("power limit 500 W"), HasSubstr("step 111")));
  // 2500 tokens/s to 2000, 0.28 J/token to 0.25.
  EXPECT_THAT(lines[1],
              AllOf(HasSubstr("2500 tokens/s before, 2000 after (-20.0 %)"),
                    HasSubstr("0.28 J/token before, 0.25 after (-10.7 %)"), HasSubstr("8 steps")));
  ASSERT_TRUE(policy.effect().has_value());
  const PowerEffect& effect = *policy.effect();
  EXPECT_EQ(effect.since_step, 111);
  EXPECT_EQ(effect.before->steps, 8);
  EXPECT_EQ(effect.after->steps, 8);
  EXPECT_DOUBLE_EQ(effect.before->tokens_per_s(), 2500);
  EXPECT_DOUBLE_EQ(effect.after->j_per_token().value(), 0.25);
  EXPECT_EQ(effect.refused, "");
}

TEST(PowerPolicy, KeepsARefusalAndLetsTheRunGoOn) {
  int asked = 0;
  PowerPolicy policy(kSettings, [&] {
    ++asked;
    failure("no permission");
  });
  std::string all;
  for (std::int64_t step = 1; step <= 40; ++step) all += policy.after_step(step, 10, 1, 5.0);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(all, "energy: power limit 500 W not set: no permission");
  EXPECT_EQ(policy.effect()->refused, "no permission");
  EXPECT_FALSE(policy.effect()->after.has_value());
}

TEST(PowerPolicy, SaysThatJoulesAreUnknown) {
  PowerPolicy policy(kSettings, {});
  std::string last;
  for (std::int64_t step = 1; step <= 20; ++step) {
    const std::string line =
        policy.after_step(step, 10, 1, step == 15 ? std::nullopt : std::optional(5.0));
    if (!line.empty()) last = line;
  }
  EXPECT_THAT(last, HasSubstr("J/token unknown"));
  EXPECT_DOUBLE_EQ(policy.effect()->before->j_per_token().value(), 0.5);
  EXPECT_FALSE(policy.effect()->after->j_per_token().has_value());
}

TEST(PowerPolicy, WithoutABaselineSetsThePowerAfterTheFirstStep) {
  int applied = 0;
  PowerPolicy policy({.gpu_clock_mhz = 1410, .baseline_steps = 0}, [&] { ++applied; });
  EXPECT_EQ(policy.after_step(7, 10, 1, 1.0), "energy: clock 1410 MHz from step 8 on");
  for (std::int64_t step = 8; step < 20; ++step) EXPECT_EQ(policy.after_step(step, 10, 1, 1.0), "");
  EXPECT_EQ(applied, 1);
  EXPECT_FALSE(policy.effect()->before.has_value());
}

TEST(PowerPolicy, DoesNothingUnlessAsked) {
  PowerPolicy policy({}, [] { FAIL(); });
  for (std::int64_t step = 1; step < 100; ++step) EXPECT_EQ(policy.after_step(step, 1, 1, 1.0), "");
  EXPECT_FALSE(policy.effect().has_value());
}

TEST(PowerPolicy, NamesBothSettings) {
  EXPECT_EQ(to_string(PowerSettings{.power_limit_w = 450, .gpu_clock_mhz = 1200}),
            "power limit 450 W, clock 1200 MHz");
}

}  // namespace
}  // namespace kintsugi
