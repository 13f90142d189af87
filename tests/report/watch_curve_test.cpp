#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "report/watch/canvas.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Nine columns of labels, then the dots, then the axis of x.
std::vector<std::string> plot(const std::vector<PlotLine>& lines, int columns, int rows,
                              bool logarithmic = false) {
  Canvas canvas(columns, rows);
  draw_plot(canvas, {0, 0, columns, rows}, lines, logarithmic);
  return canvas.lines(false);
}

// A falling line from the first dot to the last one: 16 × 16 dots in 8 × 4 cells.
TEST(WatchCurve, ADiagonalOfDots) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 16; ++i) points.emplace_back(i, 15 - i);
  // In a cell of 2 × 4 dots the diagonal has the dots (0,0) and (1,1): bits 0x01 and 0x10; or
  // (0,2) and (1,3): bits 0x04 and 0x80.
  EXPECT_THAT(plot({{points}}, 17, 5),
              ElementsAre("      15 ⠑⢄", "           ⠑⢄", "             ⠑⢄", "       0       ⠑⢄",
                          "          step 15"));
}

TEST(WatchCurve, TwoPointsAreJoinedAndAGapIsNot) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto joined = plot({{{{0, 0}, {2, 0}, {15, 15}}}}, 17, 5);
  const auto gap = plot({{{{0, 0}, {1, nan}, {2, 0}, {15, 15}}}}, 17, 5);
  EXPECT_EQ(joined[3].substr(9, 3), "⣀");  // dots 0 and 1 of the lowest row
  EXPECT_EQ(gap[3].substr(9, 3), "⡀");     // dot 0 alone
}

TEST(WatchCurve, LogarithmicAxesMakePowersStraight) {
  std::vector<std::pair<double, double>> points;
  for (double x = 1; x <= 1e15; x *= 10) points.emplace_back(x, 1 / x);
  std::vector<std::pair<double, double>> line;
  for (int i = 0; i < 16; ++i) line.emplace_back(i, -i);
  const auto logarithmic = plot({{points}}, 17, 5, true), straight = plot({{line}}, 17, 5);
  for (int row = 0; row < 4; ++row)
    EXPECT_EQ(logarithmic[row].substr(9), straight[row].substr(9)) << row;
  EXPECT_THAT(logarithmic[0], HasSubstr(" 1 "));
  EXPECT_THAT(logarithmic[3], HasSubstr("1e-15"));
}

TEST(WatchCurve, DrawsNothingWithoutPointsOrRoom) {
  EXPECT_THAT(plot({}, 17, 2), ElementsAre("", ""));
  EXPECT_THAT(plot({{{{1, std::nan("")}}}}, 17, 2), ElementsAre("", ""));
  EXPECT_THAT(plot({{{{1, -1}}}}, 17, 2, true), ElementsAre("", ""));
  EXPECT_THAT(plot({{{{1, 1}}}}, 10, 2), ElementsAre("", ""));
}

TEST(WatchCurve, OnePointIsInTheMiddle) {
  const auto lines = plot({{{{5, 2}}}}, 17, 2);
  EXPECT_EQ(lines[0], "       2     ●");  // x: dot 8 is the left one of cell 4
  EXPECT_EQ(lines[1], "          step 5") << "below it, once";
}

TEST(WatchCurve, SparklineHasEightHeights) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7, 8}, 9), "▁▂▃▄▅▆▇██");
  EXPECT_EQ(sparkline({9, 9, 0, 8}, 2), "▁█");  // the last ones
  EXPECT_EQ(sparkline({1, std::nan(""), 2}, 5), "▁ █");
  EXPECT_EQ(sparkline({3, 3}, 4), "▅▅");
  EXPECT_EQ(sparkline({1, 2}, 0), "");
}

TEST(WatchCurve, TheColumnsOfABarAddUp) {
  Canvas canvas(10, 1);
  draw_bar(canvas, 0, 0, 10, {{1, U'a'}, {1, U'b'}, {1, U'c'}});
  EXPECT_THAT(canvas.lines(false), ElementsAre("aaabbbbccc"));  // ends at 3.3, 6.7 and 10
  Canvas empty(10, 1);
  draw_bar(empty, 0, 0, 10, {{0, U'a'}, {-1, U'b'}});
  EXPECT_THAT(empty.lines(false), ElementsAre(""));
}

}  // namespace
}  // namespace kintsugi
