#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/watch/canvas.h"
#include "report/watch/frame.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

WatchedRun watched(const std::string& name) {
  WatchedRun run;
  run.summary = {.id = name,
                 .name = name,
                 .state = "running",
                 .step = 25,
                 .total_steps = 100,
                 .loss = 3.5,
                 .valid_loss = 3.75,
                 .tokens_per_s = 12000,
                 .mfu = 0.5,
                 .lr = 3e-4,
                 .eta_s = 90,
                 .attempts = 2,
                 .j_per_token = 0.25};
  run.gradient_norms = {1, 2, 3};
  run.time = {{"productive", 75}, {"recomputed", 15}, {"startup", 10}};
  run.straggler = {{"3", "n7", 1.31}};
  for (int i = 1; i <= 25; ++i) run.loss_curve.emplace_back(i, 8.0 / i);
  run.log = {"log of " + name};
  return run;
}

std::string frame_of(const std::vector<WatchedRun>& runs, FrameOptions options) {
  std::string text;
  for (const std::string& line : watch_frame(runs, options)) text += line + "\n";
  return text;
}

TEST(WatchFrame, OneRunShowsItsFigures) {
  const std::string frame = frame_of({watched("demo")}, {});
  EXPECT_THAT(frame, AllOf(HasSubstr("demo"), HasSubstr("running"), HasSubstr("step 25/100  ETA"),
                           HasSubstr("loss 3.5000  validation 3.7500  lr 3.00e-04"),
                           HasSubstr("12 k tokens/s  MFU 50.0 %  J/token 0.25")));
  EXPECT_THAT(frame, AllOf(HasSubstr("norm 3.000  ▁▅█"), HasSubstr("goodput 75.0 %"),
                           HasSubstr("2 attempts"), HasSubstr("recomputed 15 s, startup 10 s"),
                           HasSubstr("slowest rank 3 on n7: 1.31 times the median"),
                           HasSubstr("log of demo"), HasSubstr("step 25\n")));
}

// Bars of 40 columns: a quarter of the steps are 10, three quarters of the time are 30.
TEST(WatchFrame, BarsShowShares) {
  const std::string frame = frame_of({watched("demo")}, {.columns = 100});
  const auto repeated = [](const char* glyph, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += glyph;
    return text;
  };
  EXPECT_THAT(frame, HasSubstr(repeated("█", 10) + repeated("░", 30) + "  step"));
  EXPECT_THAT(frame, HasSubstr(repeated("█", 30) + repeated("▓", 6) + repeated("▒", 4) + "  2"));
}

TEST(WatchFrame, NoLineIsWiderThanTheTerminal) {
  const std::vector<WatchedRun> runs = {watched("a"), watched("損失損失損失"), watched("c")};
  for (const int columns : {1, 7, 20, 40, 79, 80, 120, 200, 400})
    for (const int rows : {1, 2, 5, 10, 24, 60}) {
      const auto lines = watch_frame(runs, {.columns = columns, .rows = rows});
      EXPECT_EQ(lines.size(), static_cast<std::size_t>(rows));
      for (const std::string& line : lines) EXPECT_LE(display_width(line), columns) << line;
    }
}

TEST(WatchFrame, PanelsAreSideBySideIfTheyFit) {
  const std::vector<WatchedRun> runs = {watched("first"), watched("second")};
  const auto wide = watch_frame(runs, {.columns = 100, .rows = 24});
  EXPECT_THAT(wide[0], AllOf(HasSubstr("first"), HasSubstr("second")));
  const auto narrow = watch_frame(runs, {.columns = 80, .rows = 30});
  EXPECT_THAT(narrow[0], AllOf(HasSubstr("first"), Not(HasSubstr("second"))));
  EXPECT_THAT(frame_of(runs, {.columns = 80, .rows = 30}),
              AllOf(HasSubstr("first"), HasSubstr("second")));
}

TEST(WatchFrame, LayoutOfPanels) {
  // Two of 49 columns beside each other.
  const FrameLayout two = lay_out(2, 100, 24, 50);
  EXPECT_EQ(two.across, 2);
  EXPECT_EQ(two.down, 1);
  EXPECT_EQ(two.log_rows, 6);  // half of what the 11 rows of figures leave
  EXPECT_EQ(two.panel_rows, 18);
  EXPECT_EQ(lay_out(2, 100, 24, 1).panel_rows, 23);  // a short log leaves its rows to the curves
  // Four in a square rather than three and one.
  const FrameLayout four = lay_out(4, 150, 40, 50);
  EXPECT_EQ(four.across, 2);
  EXPECT_EQ(four.down, 2);
  EXPECT_TRUE(lay_out(1, 20, 5, 50).shows_all());
  // A list and the chosen run, if there are too many.
  const FrameLayout many = lay_out(100, 80, 24, 50);
  EXPECT_FALSE(many.shows_all());
  EXPECT_EQ(many.list_rows + many.panel_rows + many.log_rows, 24);
}

TEST(WatchFrame, TheChosenRunOfManyIsShown) {
  std::vector<WatchedRun> runs;
  for (int i = 0; i < 50; ++i) runs.push_back(watched("run-" + std::to_string(i)));
  const std::string frame = frame_of(runs, {.chosen = 30});
  EXPECT_THAT(frame, AllOf(HasSubstr("run-29"), HasSubstr("run-30"), HasSubstr("log of run-30"),
                           HasSubstr("norm"), Not(HasSubstr("run-1 ")), Not(HasSubstr("run-49"))));
  EXPECT_EQ(runs_with_panel(50, {.chosen = 30}), std::vector<std::size_t>{30});
  EXPECT_EQ(runs_with_panel(2, {.columns = 100}), (std::vector<std::size_t>{0, 1}));
  // The last one, also if runs have disappeared since.
  EXPECT_THAT(frame_of(runs, {.chosen = 1000}), HasSubstr("log of run-49"));
}

TEST(WatchFrame, UnknownValuesAreDashes) {
  WatchedRun run;
  run.summary.name = "new";
  const std::string frame = frame_of({run}, {});
  EXPECT_THAT(frame, AllOf(HasSubstr("unknown"), HasSubstr("step –/–"), HasSubstr("loss –"),
                           HasSubstr("MFU –"), HasSubstr("norm –"), Not(HasSubstr("goodput"))));
  EXPECT_THAT(frame_of({}, {}), HasSubstr("no run yet"));
}

TEST(WatchFrame, AFailedRunShowsItsMessage) {
  WatchedRun run = watched("demo");
  run.summary.state = "failed";
  run.summary.reason = "failure";
  run.summary.message = "rank 3: \x1b[31mout of memory\nsecond line";
  const std::string frame = frame_of({run}, {});
  EXPECT_THAT(
      frame, AllOf(HasSubstr("failed (failure)"),
                   HasSubstr("rank 3: \\x1b[31mout of memory second line"), Not(HasSubstr("ETA"))));
  run.summary.state = "lost";
  run.silent_s = 600;
  EXPECT_THAT(frame_of({run}, {}), HasSubstr("silent for 10 min"));
}

TEST(WatchFrame, OneLineForPipes) {
  EXPECT_EQ(watch_line(watched("demo")),
            "demo  running  step 25/100  ETA 1 min 30 s  loss 3.5000  validation 3.7500  12 k "
            "tokens/s  MFU 50.0 %  J/token 0.25");
  WatchedRun hostile = watched("a\nb\x1b]0;");
  EXPECT_THAT(watch_line(hostile), testing::StartsWith("a b\\x1b]0;  running"));
}

}  // namespace
}  // namespace kintsugi
