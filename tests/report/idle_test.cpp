#include <gtest/gtest.h>

#include "report/profile/breakdown.h"
#include "support/profile_spans.h"

namespace kintsugi {
namespace {

// 0  1  2  3  4  5  6  7  8  9  10
// ██       ██    ██             ██   device: 0-1, 3-4, 5-6 (communication), 9-10
//    ██ █                            runtime 1-2.5
//       ████████████████             "queue" 2-7
//                      ████          data 7.5-8.5
TEST(IdleTime, IsChargedToWhatTheHostDid) {
  const IdleTime idle = idle_time(spans::one_rank(
      {spans::step(4, 0, 10), spans::operation(1, "a", 0, 1), spans::operation(2, "b", 3, 4),
       spans::communication("dp", 5, 6), spans::operation(3, "c", 9, 10),
       spans::of(SpanKind::Runtime, "cudaFree", 1, 2.5), spans::of(SpanKind::Host, "queue", 2, 7),
       spans::of(SpanKind::Data, "data wait", 7.5, 8.5)}));
  EXPECT_DOUBLE_EQ(idle.seconds, 6);
  EXPECT_DOUBLE_EQ(idle.gaps, 3);
  ASSERT_EQ(idle.hosts.size(), 4u);
  EXPECT_EQ(idle.hosts[0].host, "queue");  // 2.5-3, 4-5, 6-7
  EXPECT_DOUBLE_EQ(idle.hosts[0].seconds, 2.5);
  EXPECT_EQ(idle.hosts[1].host, "cudaFree");
  EXPECT_DOUBLE_EQ(idle.hosts[1].seconds, 1.5);
  EXPECT_EQ(idle.hosts[2].host, "");  // 7-7.5, 8.5-9
  EXPECT_EQ(idle.hosts[3].host, "data wait");
  ASSERT_EQ(idle.longest.size(), 3u);
  const IdleGap& first = idle.longest[0];
  EXPECT_EQ(first.step, 4);
  EXPECT_DOUBLE_EQ(first.begin_s, 6);
  EXPECT_DOUBLE_EQ(first.seconds, 3);
  EXPECT_EQ(first.before, "all_gather");
  EXPECT_EQ(first.after, "c");
  EXPECT_EQ(idle.longest[1].before, "a");
  EXPECT_EQ(idle.longest[1].host, "cudaFree");
  EXPECT_EQ(idle.longest[2].host, "queue");
}

TEST(IdleTime, TheEndsOfAStepHaveNoNeighbour) {
  const IdleTime idle = idle_time(
      spans::one_rank({spans::step(1, 10, 14), spans::operation(1, "old", 0, 5),
                       spans::operation(2, "x", 11, 12), spans::operation(3, "next", 20, 21)}));
  ASSERT_EQ(idle.longest.size(), 2u);
  EXPECT_DOUBLE_EQ(idle.longest[0].seconds, 2);
  EXPECT_EQ(idle.longest[0].before, "x");
  EXPECT_EQ(idle.longest[0].after, "");
  EXPECT_DOUBLE_EQ(idle.longest[1].begin_s, 0);
  EXPECT_EQ(idle.longest[1].before, "");
  EXPECT_EQ(idle.longest[1].after, "x");
  EXPECT_EQ(idle.longest[1].host, "");
}

TEST(IdleTime, KeepsTheLongestGapsOfAllRanks) {
  Profile profile;
  for (int rank = 0; rank < 3; ++rank) {
    RankTrace one{.rank = rank, .spans = {spans::step(1, 0, 100)}};
    // Gaps of 1.00, 1.01, … on rank 0, 1.03, … on rank 1
    double at = 0;
    for (int i = 0; i < 12; ++i) {
      one.spans.push_back(spans::operation(i, "x", at, at + 1));
      at += 2 + 0.01 * (i + 3 * rank);
    }
    one.spans.push_back(spans::operation(99, "last", at, 100));
    profile.ranks.push_back(std::move(one));
  }
  const IdleTime idle = idle_time(profile);
  ASSERT_EQ(idle.longest.size(), kLongestGaps);
  EXPECT_EQ(idle.longest[0].rank, 2);
  EXPECT_NEAR(idle.longest[0].seconds, 1.17, 1e-9);
  EXPECT_NEAR(idle.longest[9].seconds, 1.11, 1e-9);
  EXPECT_NEAR(idle.gaps, 12, 1e-9);
}

TEST(IdleTime, ABusyDeviceHasNone) {
  const IdleTime idle =
      idle_time(spans::one_rank({spans::step(1, 0, 4), spans::operation(1, "x", 0, 4)}));
  EXPECT_EQ(idle.seconds, 0);
  EXPECT_TRUE(idle.longest.empty());
  EXPECT_TRUE(idle.hosts.empty());
  EXPECT_EQ(idle_time({}).seconds, 0);
}

}  // namespace
}  // namespace kintsugi
