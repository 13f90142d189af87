#include "launch/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/exit_code.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

LaunchAttempt failed(std::int64_t saved) { return {.text = "rank 1 was lost", .saved = saved}; }

TEST(Recovery, OnlyFailuresAreTriedAgain) {
  for (const int code :
       {exit_code::kFinished, exit_code::kMistake, exit_code::kDiverged, exit_code::kStopped})
    EXPECT_EQ(decide({{.exit_code = code}}, 0, {}).exit_code, code);
  EXPECT_FALSE(decide({failed(0)}, 0, {}).exit_code);
}

TEST(Recovery, AttemptsWithoutANewStepEndTheJob) {
  const RecoveryLimits limits{.fruitless = 3, .first_pause_s = 1, .longest_pause_s = 5};
  std::vector<LaunchAttempt> attempts;
  const auto next = [&](std::int64_t saved) {
    attempts.push_back(failed(saved));
    return decide(attempts, 10, limits);
  };
  EXPECT_EQ(next(20).pause_s, 1);  // progress
  EXPECT_EQ(next(20).pause_s, 1);
  EXPECT_EQ(next(20).pause_s, 3);
  EXPECT_FALSE(next(30).exit_code);  // progress: the count starts again
  EXPECT_EQ(next(30).pause_s, 1);
  EXPECT_EQ(next(30).pause_s, 3);
  const Decision last = next(30);
  EXPECT_EQ(last.exit_code, exit_code::kNoProgress);
  EXPECT_THAT(last.reason, HasSubstr("3 attempts in a row saved no new step"));
  EXPECT_THAT(last.reason, HasSubstr("rank 1 was lost"));
}

TEST(Recovery, PausesGrowUpToALimit) {
  const RecoveryLimits limits{.fruitless = 10, .first_pause_s = 1, .longest_pause_s = 5};
  std::vector<LaunchAttempt> attempts;
  std::vector<double> pauses;
  for (int i = 0; i < 5; ++i) {
    attempts.push_back(failed(0));
    pauses.push_back(decide(attempts, 0, limits).pause_s);
  }
  EXPECT_THAT(pauses, ElementsAre(1, 3, 5, 5, 5));
}

JobDescription job_on(std::int64_t nodes, std::int64_t min_nodes) {
  return {.ranks_per_node = 2, .nodes = nodes, .min_nodes = min_nodes};
}
bool always(std::int64_t) { return true; }

TEST(Recovery, WithoutNodesTheLauncherChooses) {
  const auto choice = choose_nodes(job_on(3, 3), {}, always);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->nodes, 3);
  EXPECT_THAT(choice->exclude, IsEmpty());
}

TEST(Recovery, ASpareNodeReplacesTheOneThatFailed) {
  const auto choice = choose_nodes(
      job_on(2, 2), {.allocated = {"a", "b", "c"}, .down = {}, .avoided = {"b"}}, always);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->nodes, 2);
  EXPECT_THAT(choice->exclude, ElementsAre("b"));
}

// Without spares, the node that failed the longest time ago is used again; one that is down is not.
TEST(Recovery, NodesThatFailedAreUsedAgainIfTheyAreNeeded) {
  const auto choice = choose_nodes(
      job_on(3, 3), {.allocated = {"a", "b", "c", "d"}, .down = {}, .avoided = {"b", "d"}}, always);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->nodes, 3);
  EXPECT_THAT(choice->exclude, ElementsAre("b"));
  EXPECT_FALSE(choose_nodes(
      job_on(3, 3), {.allocated = {"a", "b", "c"}, .down = {"b"}, .avoided = {"b"}}, always));
}

TEST(Recovery, ARunShrinksToANumberOfNodesThatFits) {
  const NodeStates states{.allocated = {"a", "b", "c", "d"}, .down = {"c"}, .avoided = {}};
  const auto even = [](std::int64_t nodes) { return nodes % 2 == 0; };
  const auto choice = choose_nodes(job_on(4, 1), states, even);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->nodes, 2);
  EXPECT_THAT(choice->exclude, ElementsAre("c"));
  EXPECT_FALSE(choose_nodes(job_on(4, 3), states, even));
}

LaunchAttempt blaming(Blame blame) { return {.blame = std::move(blame)}; }

TEST(Recovery, OnlyANodeAtFaultIsAvoided) {
  const NodeVerdict hung = judge_node(blaming({FaultKind::Hung, {3}, "n3"}));
  EXPECT_TRUE(hung.avoid);
  EXPECT_EQ(hung.trouble, NodeTrouble::Hung);
  EXPECT_EQ(judge_node(blaming({FaultKind::Lost, {3}, "n3"})).trouble, NodeTrouble::Lost);
  const NodeVerdict error = judge_node(blaming({FaultKind::Error, {3}, "n3"}));
  EXPECT_TRUE(error.avoid);
  EXPECT_FALSE(error.trouble);  // perhaps of the program or the data: other jobs may use it
  EXPECT_FALSE(judge_node(blaming({})).avoid);
  EXPECT_FALSE(judge_node(blaming({FaultKind::Hung, {1, 3}, ""})).avoid);  // on several nodes
  LaunchAttempt mistake = blaming({FaultKind::Error, {3}, "n3"});
  mistake.exit_code = 2;
  EXPECT_FALSE(judge_node(mistake).avoid);
}

}  // namespace
}  // namespace kintsugi
