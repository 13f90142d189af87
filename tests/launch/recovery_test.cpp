#include "launch/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

LaunchAttempt failed(std::int64_t saved) {
  return {.end = {.failure = {.text = "rank 1 was lost"}}, .saved = saved};
}

TEST(Recovery, OnlyFailuresAreTriedAgain) {
  for (const int code :
       {exit_code::kFinished, exit_code::kMistake, exit_code::kDiverged, exit_code::kStopped})
    EXPECT_EQ(decide({{.end = {.exit_code = code}}}, 0, {}).exit_code, code);
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

TEST(Recovery, LaterStartsMayTakeAsLongAsThoseBeforeWithAMargin) {
  const StartLimits limits{.first_s = 900, .again_s = 120, .times_known = 5};
  const auto limit_after = [&](const std::vector<double>& reported, double before_s = -1) {
    std::vector<LaunchAttempt> attempts;
    for (const double s : reported) attempts.push_back({.reported_s = s});
    return start_limit_s(attempts, before_s, limits);
  };
  EXPECT_EQ(limit_after({}), 900);
  EXPECT_EQ(limit_after({-1, -1}), 900) << "no start is known";
  EXPECT_EQ(limit_after({3}), 120);
  EXPECT_EQ(limit_after({40}), 200);
  EXPECT_EQ(limit_after({40, 10}), 200) << "the slowest";
  EXPECT_EQ(limit_after({300}), 900);
  EXPECT_EQ(limit_after({40, -1}), 400) << "it may have been slow";
  EXPECT_EQ(limit_after({40, -1, -1, -1}), 900);
  EXPECT_EQ(limit_after({40, -1, 50}), 250);
  EXPECT_EQ(limit_after({}, 40), 200) << "another supervisor saw it";
  EXPECT_EQ(limit_after({-1}, 40), 400);
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

// Each kind of failure of a rank on node n3: whether this job avoids the node, and what the ledger
// tells later jobs.
TEST(Recovery, WhichFailuresExcludeTheNodeOfTheCulprit) {
  const auto verdict = [](FailureKind kind, std::vector<Culprit> culprits = {{3, "n3"}}) {
    return judge_node({.kind = kind, .culprits = std::move(culprits)});
  };
  const std::vector<std::pair<FailureKind, NodeTrouble>> bad = {
      {FailureKind::Lost, NodeTrouble::Lost},
      {FailureKind::Silent, NodeTrouble::Hung},
      {FailureKind::Stuck, NodeTrouble::Hung}};
  for (const auto& [kind, trouble] : bad) {
    EXPECT_TRUE(verdict(kind).avoid) << to_string(kind);
    EXPECT_EQ(verdict(kind).trouble, trouble) << to_string(kind);
  }
  // Perhaps of the program, the data or the file system: other jobs may use the node.
  for (const FailureKind kind : {FailureKind::Error, FailureKind::Misread}) {
    EXPECT_TRUE(verdict(kind).avoid) << to_string(kind);
    EXPECT_FALSE(verdict(kind).trouble) << to_string(kind);
  }
  for (const FailureKind kind : {FailureKind::Unknown, FailureKind::Mistake,
                                 FailureKind::DamagedFile, FailureKind::Diverged}) {
    EXPECT_FALSE(verdict(kind).avoid) << to_string(kind);
    EXPECT_FALSE(verdict(kind).trouble) << to_string(kind);
  }
  const std::vector<Culprit> one_node = {{2, "n3"}, {3, "n3"}}, several = {{1, "n1"}, {3, "n3"}};
  EXPECT_TRUE(verdict(FailureKind::Stuck, one_node).avoid);
  EXPECT_FALSE(verdict(FailureKind::Stuck, several).avoid);
  EXPECT_FALSE(verdict(FailureKind::Stuck, {}).avoid);
  EXPECT_FALSE(verdict(FailureKind::Stuck, {{3, ""}}).avoid);
}

}  // namespace
}  // namespace kintsugi
