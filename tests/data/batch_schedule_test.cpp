#include "data/sampling/batch_schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "core/error.h"

namespace kintsugi {
namespace {

struct Ramp {
  std::int64_t full, start, increment, samples;
};

// The definition, one step after the other.
std::int64_t batch_after(const Ramp& ramp, std::int64_t consumed) {
  const std::int64_t increments = (ramp.full - ramp.start) / ramp.increment;
  // floor(consumed / (samples / increments))
  std::int64_t whole = 0;
  while (whole < increments && (whole + 1) * ramp.samples <= consumed * increments) ++whole;
  return ramp.start + whole * ramp.increment;
}

void expect_steps(const Ramp& ramp) {
  SCOPED_TRACE(testing::Message() << ramp.start << " to " << ramp.full << " by " << ramp.increment
                                  << " over " << ramp.samples);
  const BatchRamp given{ramp.start, ramp.increment, ramp.samples};
  const BatchSchedule schedule(ramp.full, given);
  std::int64_t consumed = 0;
  for (std::int64_t step = 1; consumed < ramp.samples + 3 * ramp.full; ++step) {
    const std::int64_t batch = batch_after(ramp, consumed);
    ASSERT_EQ(schedule.first_sample(step), consumed) << step;
    ASSERT_EQ(schedule.sequences(step), batch) << step;
    // A run that needs one sample more than those of the steps before, or all of this step's.
    ASSERT_EQ(schedule.steps_for(consumed), step - 1);
    ASSERT_EQ(schedule.steps_for(consumed + 1), step);
    ASSERT_EQ(schedule.steps_for(consumed + batch), step);
    // Resumed here, the steps are the same.
    const BatchSchedule later(ramp.full, given, {step - 1, consumed});
    ASSERT_EQ(later.steps_for(consumed), step - 1);
    for (const std::int64_t ahead : {0, 1, 7}) {
      ASSERT_EQ(later.first_sample(step + ahead), schedule.first_sample(step + ahead));
      ASSERT_EQ(later.sequences(step + ahead), schedule.sequences(step + ahead));
    }
    consumed += batch;
  }
  EXPECT_EQ(schedule.sequences(schedule.steps_for(ramp.samples) + 1), ramp.full);
  EXPECT_EQ(schedule.full(), ramp.full);
}

TEST(BatchSchedule, FollowsTheDefinitionStepByStep) {
  expect_steps({512, 64, 64, 100'000});
  expect_steps({12, 4, 4, 17});     // 8.5 samples per increment
  expect_steps({10, 1, 3, 10});     // 10/3 samples: boundaries at 4, 7 and 10
  expect_steps({1000, 1, 1, 500});  // batches that skip increments
  expect_steps({100, 99, 1, 1});
  std::mt19937 random(5);
  for (int draw = 0; draw < 200; ++draw) {
    const auto up_to = [&](std::uint32_t most) {
      return static_cast<std::int64_t>(1 + random() % most);
    };
    const std::int64_t start = up_to(9), increment = up_to(9);
    expect_steps({start + increment * up_to(20), start, increment, up_to(900)});
  }
}

// Megatron's documentation of --rampup-batch-size 16 8 300000 with --global-batch-size 1024: "will
// start with global batch size 16 and over (1024 - 16) / 8 = 126 intervals will increase the batch
// size linearly to 1024. In each interval we will use approximately 300000 / 126 = 2380 samples."
TEST(BatchSchedule, MegatronsExample) {
  expect_steps({1024, 16, 8, 300'000});
  const BatchSchedule schedule(1024, {16, 8, 300'000});
  // 148 steps use 2368 samples, 149 use 2384, and 2384 > 2380.95.
  EXPECT_EQ(schedule.sequences(149), 16);
  EXPECT_EQ(schedule.sequences(150), 24);
  EXPECT_EQ(schedule.first_sample(150), 2384);
  const std::int64_t last = schedule.steps_for(300'000);
  EXPECT_EQ(schedule.sequences(last), 1016);
  EXPECT_EQ(schedule.sequences(last + 1), 1024);
  std::int64_t begin = 0, sizes = 1;
  for (std::int64_t step = 2; step <= last + 1; ++step) {
    if (schedule.sequences(step) == schedule.sequences(step - 1)) continue;
    ++sizes;
    EXPECT_NEAR(static_cast<double>(schedule.first_sample(step) - begin), 2380, 1016);
    begin = schedule.first_sample(step);
  }
  EXPECT_EQ(sizes, 127);
}

TEST(BatchSchedule, WithoutARampAllStepsAreFull) {
  const BatchSchedule plain(6), flat(6, {6, 2, 100}), resumed(6, {}, {10, 35});
  EXPECT_EQ(plain.first_sample(1), 0);
  EXPECT_EQ(plain.first_sample(8), 42);
  EXPECT_EQ(flat.first_sample(8), 42);
  EXPECT_EQ(flat.sequences(1), 6);
  EXPECT_EQ(plain.steps_for(42), 7);
  EXPECT_EQ(plain.steps_for(43), 8);
  EXPECT_EQ(resumed.first_sample(11), 35);
  EXPECT_EQ(resumed.first_sample(13), 47);
  EXPECT_THROW(resumed.first_sample(10), Failure);
}

// Batches of 2, 2, 4 of a ramp, then 3 and 3, then 5: the changes cut the ramp and the full batch.
TEST(BatchSchedule, BatchesThatWereChanged) {
  const std::vector<PastBatch> past = {{6, {2, 2, 8}, {3, 8}}, {3, {}, {5, 14}}};
  const BatchSchedule schedule(past, 5, {});
  const std::vector<std::int64_t> expected = {2, 2, 4, 3, 3, 5, 5};
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto step = static_cast<std::int64_t>(i) + 1;
    EXPECT_EQ(schedule.sequences(step), expected[i]) << step;
    EXPECT_EQ(schedule.first_sample(step), samples) << step;
    EXPECT_EQ(schedule.steps_for(samples), step - 1);
    EXPECT_EQ(schedule.steps_for(samples + 1), step);
    samples += expected[i];
  }
  EXPECT_EQ(schedule.steps_for(1014), 205);
  // A new ramp counts the samples of the stage: at sample 14 it has reached 4 of 6 sequences.
  const BatchSchedule ramp(past, 6, {2, 2, 20});
  EXPECT_EQ(ramp.sequences(5), 3);
  EXPECT_EQ(ramp.sequences(6), 4);
  EXPECT_EQ(ramp.first_sample(8), 22);
  EXPECT_EQ(ramp.sequences(8), 6);
}

TEST(BatchSchedule, HugeNumbersDoNotOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLarge = 1'000'000'000;
  const BatchSchedule ramp(2 * kLarge, {kLarge, kLarge / 10'000, 1'000'000'000'000'000});
  EXPECT_EQ(ramp.first_sample(1'000'000'000'000'001), kMost);
  EXPECT_EQ(ramp.sequences(1), kLarge);
  // An increment every 10^11 samples, that is, after 100 steps of 10^9.
  EXPECT_EQ(ramp.sequences(100), kLarge);
  EXPECT_EQ(ramp.sequences(101), kLarge + kLarge / 10'000);
  EXPECT_EQ(BatchSchedule(1).steps_for(kMost), kMost);
}

}  // namespace
}  // namespace kintsugi
