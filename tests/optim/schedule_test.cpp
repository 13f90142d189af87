#include "optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "model/model_test_util.h"

namespace kintsugi {
namespace {

constexpr ScheduleKind kAll[] = {ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd,
                                 ScheduleKind::Constant};

Schedule schedule(ScheduleKind kind) {
  return {.kind = kind,
          .lr = 1e-3,
          .min_lr = 1e-4,
          .warmup_steps = 10,
          .decay_steps = 0,
          .total_steps = 110};
}

TEST(ScheduleTest, WarmsUpLinearly) {
  for (const ScheduleKind kind : kAll) {
    const Schedule s = schedule(kind);
    for (std::int64_t step = 1; step <= 10; ++step)
      EXPECT_DOUBLE_EQ(s.learning_rate(step), 1e-3 * static_cast<double>(step) / 10)
          << to_string(kind) << step;
  }
}

TEST(ScheduleTest, Cosine) {
  const Schedule s = schedule(ScheduleKind::Cosine);
  EXPECT_DOUBLE_EQ(s.learning_rate(60), 5.5e-4) << "half of the way";
  EXPECT_NEAR(s.learning_rate(35), 1e-4 + 9e-4 * (2 + std::numbers::sqrt2) / 4, 1e-15)
      << "a quarter: cos 45 degrees";
  for (std::int64_t step = 10; step <= 110; ++step) {
    const double angle = std::numbers::pi * static_cast<double>(step - 10) / 100;
    EXPECT_NEAR(s.learning_rate(step), 1e-4 + 9e-4 * std::pow(std::cos(angle / 2), 2), 1e-15)
        << step;
  }
  EXPECT_EQ(s.learning_rate(110), 1e-4);
}

TEST(ScheduleTest, Linear) {
  const Schedule s = schedule(ScheduleKind::Linear);
  for (std::int64_t step = 10; step <= 110; ++step)
    EXPECT_NEAR(s.learning_rate(step), 1e-3 - 9e-6 * static_cast<double>(step - 10), 1e-15) << step;
  EXPECT_EQ(s.learning_rate(110), 1e-4);
}

TEST(ScheduleTest, WarmUpStableDecay) {
  Schedule s = schedule(ScheduleKind::Wsd);
  s.decay_steps = 30;
  for (std::int64_t step = 10; step <= 80; ++step) EXPECT_EQ(s.learning_rate(step), 1e-3) << step;
  for (std::int64_t step = 81; step <= 110; ++step)
    EXPECT_NEAR(s.learning_rate(step), 1e-3 - 3e-5 * static_cast<double>(step - 80), 1e-15) << step;
  EXPECT_EQ(s.learning_rate(110), 1e-4);

  s.decay_steps = 0;  // 110 / 5
  EXPECT_EQ(s.learning_rate(88), 1e-3);
  EXPECT_LT(s.learning_rate(89), 1e-3);
  s.decay_steps = 1000;  // longer than the run: right after the warm-up
  EXPECT_EQ(s.learning_rate(10), 1e-3);
  EXPECT_NEAR(s.learning_rate(60), 5.5e-4, 1e-15);
  EXPECT_EQ(s.learning_rate(110), 1e-4);
}

TEST(ScheduleTest, Constant) {
  const Schedule s = schedule(ScheduleKind::Constant);
  for (std::int64_t step = 10; step <= 200; ++step) EXPECT_EQ(s.learning_rate(step), 1e-3);
}

// For runs of any length: the last step has exactly min_lr, no step is above lr, and the learning
// rate never increases after the warm-up.
TEST(ScheduleTest, EndsExactlyAtTheMinimum) {
  for (const ScheduleKind kind : {ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd})
    for (const std::int64_t total : {6, 7, 99, 1000, 12345})
      for (const std::int64_t warmup : {0, 1, 4})
        for (const double least : {0.0, 3.3e-5, 1e-3}) {
          const Schedule s{kind, 1e-3, least, warmup, 0, total};
          EXPECT_EQ(s.learning_rate(total), least) << to_string(kind) << total;
          EXPECT_EQ(s.learning_rate(total + 5), least) << "after the end";
          double previous = 1e-3;
          for (std::int64_t step = std::max<std::int64_t>(warmup, 1); step <= total; ++step) {
            const double lr = s.learning_rate(step);
            ASSERT_LE(lr, previous * (1 + 1e-15)) << step;
            ASSERT_GE(lr, least) << step;
            previous = lr;
          }
        }
}

TEST(ScheduleTest, NoWarmUpStartsBelowTheTop) {
  const Schedule s{ScheduleKind::Linear, 1.0, 0.0, 0, 0, 10};
  EXPECT_DOUBLE_EQ(s.learning_rate(1), 0.9);
  EXPECT_DOUBLE_EQ(s.learning_rate(10), 0.0);
}

TEST(ScheduleTest, AWarmUpThatFillsTheRun) {
  for (const ScheduleKind kind : kAll) {
    const Schedule s{kind, 1e-3, 1e-4, 10, 0, 10};
    EXPECT_EQ(s.learning_rate(10), 1e-3) << to_string(kind);
    EXPECT_DOUBLE_EQ(s.learning_rate(5), 5e-4) << to_string(kind);
  }
}

TEST(ScheduleTest, Names) {
  for (const ScheduleKind kind : kAll) EXPECT_EQ(parse_schedule(to_string(kind)), kind);
  EXPECT_THAT(user_error_of([] { parse_schedule("cosinus"); }),
              testing::HasSubstr("'cosinus' is not a schedule"));
}

}  // namespace
}  // namespace kintsugi
