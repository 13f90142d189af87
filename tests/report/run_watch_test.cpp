#include "report/watch/run_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/synthetic_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;

class RunWatchTest : public testing::Test {
 protected:
  WatchedRun only_run(RunWatch& watch) {
    std::vector<WatchedRun> runs = watch.look();
    EXPECT_EQ(runs.size(), 1u);
    if (runs.empty()) return {};
    watch.read_details(runs[0]);
    return runs[0];
  }
  TemporaryDirectory directory_;
};

TEST_F(RunWatchTest, ReadsWhatTheViewShows) {
  write_synthetic_run(directory_ / "a", {});
  directory_.write("a/status.json",
                   R"({"state":"failed","step":100,"total_steps":100,"message":"it broke",)"
                   R"("straggler":{"rank":3,"node":"n7","ratio":1.5}})");
  RunWatch watch({directory_.path()});
  const WatchedRun run = only_run(watch);
  EXPECT_EQ(run.summary.state, "failed");
  EXPECT_EQ(run.summary.message, "it broke");
  EXPECT_TRUE(run.ended());
  ASSERT_EQ(run.loss_curve.size(), 100u);
  for (int k = 1; k <= 100; ++k) {
    EXPECT_EQ(run.loss_curve[static_cast<std::size_t>(k - 1)].first, k);
    EXPECT_FLOAT_EQ(static_cast<float>(run.loss_curve[static_cast<std::size_t>(k - 1)].second),
                    1 + 8.0f / static_cast<float>(k));
  }
  ASSERT_EQ(run.valid_curve.size(), 10u);
  EXPECT_EQ(run.valid_curve[0].first, 10);
  ASSERT_EQ(run.gradient_norms.size(), 100u);
  EXPECT_EQ(run.gradient_norms.back(), 1);
  EXPECT_NEAR(run.goodput().value(), 50.0 / 70, 1e-9);
  ASSERT_TRUE(run.straggler);
  EXPECT_EQ(run.straggler->rank, "3");
  EXPECT_EQ(run.straggler->node, "n7");
  EXPECT_EQ(run.straggler->ratio, 1.5);
  EXPECT_THAT(run.log, ElementsAre("first line", "last line"));
}

// 2000 steps in 800 points: three steps each, but the first ones are single.
TEST_F(RunWatchTest, TheBeginningOfALongCurveIsResolved) {
  write_synthetic_run(directory_ / "a", {.steps = 2000, .total_steps = 2000});
  RunWatch watch({directory_.path()});
  const auto curve = only_run(watch).loss_curve;
  EXPECT_LE(curve.size(), 900u);
  EXPECT_EQ(curve.front(), (std::pair<double, double>(1, 9)));
  EXPECT_TRUE(std::is_sorted(curve.begin(), curve.end()));
}

TEST_F(RunWatchTest, GoesOnWhenFilesAreMissingForAMoment) {
  write_synthetic_run(directory_ / "a", {.state = "running"});
  RunWatch watch({directory_.path()});
  EXPECT_EQ(only_run(watch).loss_curve.size(), 100u);
  for (const char* name : {"metrics.jsonl", "log.txt", "goodput.jsonl"})
    std::filesystem::rename(directory_ / "a" / name, directory_ / name);
  const WatchedRun without = only_run(watch);
  EXPECT_TRUE(without.loss_curve.empty());
  EXPECT_TRUE(without.log.empty());
  EXPECT_FALSE(without.goodput());
  for (const char* name : {"metrics.jsonl", "log.txt", "goodput.jsonl"})
    std::filesystem::rename(directory_ / name, directory_ / "a" / name);
  EXPECT_EQ(only_run(watch).loss_curve.size(), 100u);
}

TEST_F(RunWatchTest, SilenceIsSinceTheLastWrite) {
  write_synthetic_run(directory_ / "a", {.state = "running"});
  double now_s = 0;
  RunWatch watch({directory_.path()}, {.now_s = [&] { return now_s; },
                                       .host = "here",
                                       .is_alive = [](std::int64_t) { return true; }});
  now_s = only_run(watch).summary.updated_s.value() + 600;
  const WatchedRun run = only_run(watch);
  EXPECT_NEAR(run.silent_s.value(), 600, 1e-6);
  EXPECT_TRUE(run.summary.stalled);
}

TEST_F(RunWatchTest, ARunThatDisappearedHasNoDetails) {
  write_synthetic_run(directory_ / "a", {});
  RunWatch watch({directory_.path()});
  WatchedRun gone = only_run(watch);
  gone = {.summary = {.id = "b", .name = "b"}};
  watch.read_details(gone);
  EXPECT_TRUE(gone.loss_curve.empty());
}

}  // namespace
}  // namespace kintsugi
