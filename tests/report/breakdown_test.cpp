#include "report/profile/breakdown.h"

#include <gtest/gtest.h>

#include <random>

#include "support/profile_spans.h"

namespace kintsugi {
namespace {

using Category = TimeCategory;

StepBreakdown only_step(const Profile& profile) {
  const auto steps = step_breakdowns(profile);
  EXPECT_EQ(steps.size(), 1u);
  return steps.at(0);
}

void expect_seconds(const TimeBreakdown& breakdown, std::array<double, kTimeCategories> expected) {
  for (const Category category : kAllCategories)
    EXPECT_NEAR(breakdown[category], expected[static_cast<std::size_t>(category)], 1e-12)
        << to_string(category);
}

// 0  1  2  3  4  5  6  7  8  9  10   step from 1 to 10
// kernel    ██ ██ ██                 2-5
// memcpy             ██ ██           4-6
// memset                ██           5-6
// comm   ██ ██             ██ ██     1-3, 6-8
// runtime                     ██     7-8.5
// data                           █   8-9
// host   ██ ██ ██ ██ ██ ██ ██ ██ █   1-9.5
TEST(TimeBreakdown, EachCategoryGetsWhatTheOnesBeforeItLeave) {
  const Profile profile = spans::one_rank(
      {spans::step(3, 1, 10), spans::of(SpanKind::Kernel, "k", 2, 5),
       spans::of(SpanKind::Memcpy, "c", 4, 6), spans::of(SpanKind::Memset, "s", 5, 6),
       spans::communication("dp", 1, 3), spans::communication("dp", 6, 8),
       spans::of(SpanKind::Runtime, "r", 7, 8.5), spans::of(SpanKind::Data, "data wait", 8, 9),
       spans::of(SpanKind::Host, "queue", 1, 9.5)});
  const StepBreakdown step = only_step(profile);
  EXPECT_EQ(step.step, 3);
  EXPECT_DOUBLE_EQ(step.wall_s, 9);
  expect_seconds(step, {3, 1, 0, 3, 0.5, 0.5, 0.5, 0.5});
  EXPECT_DOUBLE_EQ(step.overlap_s, 1);
  EXPECT_DOUBLE_EQ(step.idle_s(), 2);
  EXPECT_DOUBLE_EQ(step.utilisation(), 3.0 / 9);
}

// A category that fills the whole step leaves nothing: the next ones do not count from scratch.
TEST(TimeBreakdown, AFullStepLeavesNothing) {
  const Profile profile =
      spans::one_rank({spans::step(1, 0, 4), spans::of(SpanKind::Kernel, "k", -1, 5),
                       spans::of(SpanKind::Memcpy, "c", 1, 2), spans::communication("dp", 0, 4),
                       spans::of(SpanKind::Host, "h", 0, 4)});
  expect_seconds(only_step(profile), {4, 0, 0, 0, 0, 0, 0, 0});
}

TEST(TimeBreakdown, AnEmptyStepIsOther) {
  expect_seconds(only_step(spans::one_rank({spans::step(1, 0, 4)})), {0, 0, 0, 0, 0, 0, 0, 4});
}

// Operations are the kernels only where there are no kernels.
TEST(TimeBreakdown, OperationsCountAsKernelsOnTheCpu) {
  const TraceSpan operation = spans::operation(1, "matmul", 0, 3);
  expect_seconds(only_step(spans::one_rank({spans::step(1, 0, 4), operation})),
                 {3, 0, 0, 0, 0, 0, 0, 1});
  expect_seconds(only_step(spans::one_rank(
                     {spans::step(1, 0, 4), operation, spans::of(SpanKind::Kernel, "k", 1, 2)})),
                 {1, 0, 0, 0, 0, 0, 0, 3});
}

TEST(TimeBreakdown, IsByRankAndStep) {
  Profile profile;
  profile.ranks.push_back({.rank = 2,
                           .spans = {spans::step(8, 10, 12), spans::step(7, 0, 4),
                                     spans::of(SpanKind::Kernel, "k", 3, 11)}});
  profile.ranks.push_back({.rank = 5, .spans = {spans::step(7, 0, 3)}});
  const auto steps = step_breakdowns(profile);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(std::pair(steps[0].rank, steps[0].step), std::pair(2, std::int64_t{7}));
  EXPECT_DOUBLE_EQ(steps[0][Category::Kernel], 1);
  EXPECT_DOUBLE_EQ(steps[1][Category::Kernel], 1);
  EXPECT_DOUBLE_EQ(steps[2][Category::Other], 3);
  const TimeBreakdown mean = mean_breakdown(steps);
  EXPECT_DOUBLE_EQ(mean.wall_s, 3);
  EXPECT_DOUBLE_EQ(mean[Category::Kernel], 2.0 / 3);
}

// 66 blocks use half of 132 multiprocessors; 1000 blocks use all of them.
TEST(TimeBreakdown, EstimatesTheMultiprocessorsInUse) {
  TraceSpan half = spans::of(SpanKind::Kernel, "half", 0, 2);
  half.blocks = 66;
  TraceSpan full = spans::of(SpanKind::Kernel, "full", 2, 3);
  full.blocks = 1000;
  const auto efficiency = [&](std::int64_t multiprocessors) {
    return only_step(spans::one_rank({spans::step(1, 0, 4), half, full},
                                     {.multiprocessors = multiprocessors}))
        .multiprocessor_efficiency();
  };
  EXPECT_DOUBLE_EQ(efficiency(132), (0.5 * 2 + 1) / 4);
  EXPECT_EQ(efficiency(0), 0);
}

TEST(TimeBreakdown, AlwaysAddsUpToTheStep) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> moment(0, 10);
  for (int round = 0; round < 50; ++round) {
    std::vector<TraceSpan> all{spans::step(1, 2, 8)};
    for (int i = 0; i < 40; ++i) {
      double begin = moment(random), end = moment(random);
      if (end < begin) std::swap(begin, end);
      const auto kind = static_cast<SpanKind>(random() % 9);
      all.push_back(spans::of(kind, "x", begin, begin + (end - begin) / 8));
    }
    const StepBreakdown step = only_step(spans::one_rank(all));
    double sum = 0;
    for (const Category category : kAllCategories) {
      EXPECT_GE(step[category], 0);
      sum += step[category];
    }
    EXPECT_NEAR(sum, 6, 1e-9);
  }
}

}  // namespace
}  // namespace kintsugi
