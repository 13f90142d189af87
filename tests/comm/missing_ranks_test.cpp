#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/roll_call.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Answers = std::vector<std::optional<std::string>>;

std::string calls(std::int64_t dp_started, std::int64_t dp_finished, std::int64_t tp_pending = 0) {
  return to_text({{"dp#4", dp_started, dp_finished}, {"tp#2", 7 + tp_pending, 7}});
}

TEST(MissingRanks, CallsAreReadAsTheyAreWritten) {
  const std::vector<LaneCalls> lanes = {{"pp#5 2>3", 4, 3}, {"dp#4", 0, 0}};
  EXPECT_EQ(lane_calls_of(to_text(lanes)), lanes);
  EXPECT_THAT(lane_calls_of("no number\tx\n\n"), IsEmpty());
}

// Rank 0 asks: ranks 0 and 1 wait for call 5, which rank 2 has not made.
TEST(MissingRanks, TheRankThatDidNotCallIsAtFault) {
  const RankFailure missing = find_missing_ranks({1, 2}, {calls(5, 4), calls(4, 4)}, "dp#4", 5);
  EXPECT_EQ(missing.text, "it was not called by rank 2 (after 4 calls)");
  EXPECT_EQ(missing.kind, FailureKind::Stuck);
  EXPECT_THAT(missing.culprits, ElementsAre(Culprit{2}));
}

// Rank 2 waits for a tensor rank: it is late because of that one.
TEST(MissingRanks, ARankThatWaitsItselfIsNotAtFault) {
  const RankFailure missing = find_missing_ranks({1, 2}, {calls(5, 4), calls(4, 4, 1)}, "dp#4", 5);
  EXPECT_EQ(missing.text, "it was not called by rank 2 (after 4 calls; it waits for another call)");
  EXPECT_THAT(missing.culprits, IsEmpty());
}

TEST(MissingRanks, NobodyIsAtFaultIfAllMadeTheCall) {
  const RankFailure missing = find_missing_ranks({1, 2}, {calls(5, 4), calls(6, 4)}, "dp#4", 5);
  EXPECT_THAT(missing.text, HasSubstr("a GPU or the network hangs"));
  EXPECT_THAT(missing.culprits, IsEmpty());
}

TEST(MissingRanks, ASilentRankIsAtFaultOnlyIfOthersAnswer) {
  const RankFailure one = find_missing_ranks({1, 2}, {calls(5, 4), std::nullopt}, "dp#4", 5);
  EXPECT_EQ(one.text, "no answer from rank 2");
  EXPECT_EQ(one.kind, FailureKind::Silent);
  EXPECT_THAT(one.culprits, ElementsAre(Culprit{2}));
  const RankFailure all = find_missing_ranks({1, 2}, Answers(2), "dp#4", 5);
  EXPECT_EQ(all.text, "no answer from rank 1, rank 2");
  EXPECT_EQ(all.kind, FailureKind::Unknown);
  EXPECT_THAT(all.culprits, IsEmpty());  // the network of the rank that asks may be broken
}

}  // namespace
}  // namespace kintsugi
