#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/profile/breakdown.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

TraceSpan step(double begin, double end, const char* name = "step 3") {
  return {.kind = SpanKind::Host, .lane = "host", .name = name, .begin_s = begin, .end_s = end};
}
TraceSpan compute(double begin, double end) {
  return {.kind = SpanKind::Operation,
          .lane = "compute",
          .name = "matmul",
          .begin_s = begin,
          .end_s = end};
}
TraceSpan call(const char* lane, double begin, double end, const char* id, std::int64_t bytes = 8) {
  return {.kind = SpanKind::Communication,
          .lane = lane,
          .name = "all_gather",
          .begin_s = begin,
          .end_s = end,
          .bytes = bytes,
          .call = id};
}

//           0   1   2   3   4   5   6   7   8   9   10
// compute   ████████████            ████
// shard         ████████████████
// pp                            ████████████
TEST(Exposure, CommunicationIsExposedWhereNothingComputes) {
  const RankTrace rank{0,
                       "",
                       {step(0, 10), compute(0, 2), compute(1, 3), compute(6, 7),
                        call("shard", 1, 5, "a"), call("pp > 1", 5, 8, "b", 100)}};
  const auto steps = step_exposures({rank});
  ASSERT_EQ(steps.size(), 1u);
  const Exposure& all = steps[0].all;
  EXPECT_DOUBLE_EQ(all.total_s, 10);
  EXPECT_DOUBLE_EQ(all.compute_s, 4);
  EXPECT_DOUBLE_EQ(all.communication_s, 7);
  EXPECT_DOUBLE_EQ(all.exposed_s, 4);  // 3-5, 5-6, 7-8
  EXPECT_DOUBLE_EQ(all.waiting_s, 0);
  EXPECT_DOUBLE_EQ(all.idle_s(), 2);  // 8-10
  EXPECT_DOUBLE_EQ(all.hidden_share(), 3.0 / 7);
  EXPECT_EQ(all.bytes, 108);
  ASSERT_EQ(steps[0].groups.size(), 2u);
  EXPECT_DOUBLE_EQ(steps[0].groups.at("shard").exposed_s, 2);
  EXPECT_DOUBLE_EQ(steps[0].groups.at("pp").exposed_s, 2);
  EXPECT_EQ(steps[0].groups.at("pp").bytes, 100);
}

// Rank 0 begins to receive at 1; rank 1 sends from 4 to 6.
TEST(Exposure, WaitingForTheOtherRankIsCountedSeparately) {
  const RankTrace receiver{
      0, "", {step(0, 10), compute(0, 2), call("pp < 1", 1, 6, "pp 1>0 1"), compute(6, 9)}};
  const RankTrace sender{1, "", {step(0, 10), compute(0, 4), call("pp > 0", 4, 6, "pp 1>0 1")}};
  const auto steps = step_exposures({receiver, sender});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_DOUBLE_EQ(steps[0].all.exposed_s, 4);  // 2-6
  EXPECT_DOUBLE_EQ(steps[0].all.waiting_s, 2);  // 2-4
  EXPECT_DOUBLE_EQ(steps[1].all.exposed_s, 2);
  EXPECT_DOUBLE_EQ(steps[1].all.waiting_s, 0);
}

// A send that ends before the receiver enters the call counts as waiting for its full duration.
TEST(Exposure, ACallThatEndedBeforeAllEnteredOnlyWaited) {
  const RankTrace sender{0, "", {step(0, 4), call("pp > 1", 0, 1, "m")}};
  const RankTrace receiver{1, "", {step(0, 4), call("pp < 0", 3, 4, "m")}};
  const auto steps = step_exposures({sender, receiver});
  EXPECT_DOUBLE_EQ(steps[0].all.exposed_s, 1);
  EXPECT_DOUBLE_EQ(steps[0].all.waiting_s, 1);
  EXPECT_DOUBLE_EQ(steps[1].all.waiting_s, 0);
}

TEST(Exposure, EveryStepHasItsOwnPartOfACall) {
  const RankTrace rank{
      2, "", {step(0, 4, "step 9"), step(5, 10, "step 10"), call("shard", 3, 7, "a", 40)}};
  const auto steps = step_exposures({rank});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].rank, 2);
  EXPECT_EQ(steps[0].step, 9);
  EXPECT_DOUBLE_EQ(steps[0].all.exposed_s, 1);
  EXPECT_EQ(steps[0].all.bytes, 0);
  EXPECT_DOUBLE_EQ(steps[1].all.exposed_s, 2);
  EXPECT_EQ(steps[1].all.bytes, 40);  // counted in the step in which the call ends
}

TEST(Exposure, LinesAreOfAllStepsAndRanks) {
  const RankTrace busy{0, "", {step(0, 10), compute(0, 8), call("shard", 7, 9, "a", 2048)}};
  const RankTrace idle{1, "", {step(0, 10), call("shard", 8, 9, "a", 2048)}};
  const auto lines = exposure_lines(step_exposures({busy, idle}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(
      lines[0],
      "step 3, mean of 2 ranks: compute 40.0 %, communication 15.0 % of the time, of which "
      "33 % overlaps with compute; exposed 10.0 % (waiting for another rank 0.0 %); idle 50.0 %");
  EXPECT_THAT(lines[1],
              HasSubstr("shard: 15.0 % of the time, of which 33 % overlaps with compute"));
  const auto alone = exposure_lines(step_exposures({{0, "", {step(0, 4), compute(0, 3)}}}));
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0], "step 3: compute 75.0 %; idle 25.0 %");
  EXPECT_TRUE(exposure_lines({}).empty());
}

}  // namespace
}  // namespace kintsugi
