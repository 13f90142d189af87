// The drawings of a schedule: expected characters by hand, and an SVG that is well-formed XML.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "parallel/schedule_timing.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

constexpr ActionTimes kEqualHalves = {.forward = 1, .backward_input = 1, .backward_weight = 1};

std::string drawn(const PipelineShape& shape, int columns) {
  const PipelineSchedule schedule = make_pipeline_schedule(shape);
  return draw_schedule(schedule, simulate_pipeline(schedule, kEqualHalves), columns);
}

std::string svg_of(const PipelineShape& shape) {
  const PipelineSchedule schedule = make_pipeline_schedule(shape);
  return schedule_svg(schedule, simulate_pipeline(schedule, kEqualHalves));
}

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++count;
  return count;
}

// Checks nested tags and a single root, which is enough for the XML that we write.
void expect_well_formed(const std::string& text) {
  std::vector<std::string> open;
  int roots = 0;
  const std::regex tag("<(/?)([a-z]+)((?: [A-Za-z-]+=\"[^\"<&]*\")*)(/?)>");
  std::string rest;
  auto at = text.cbegin();
  for (std::sregex_iterator it(text.begin(), text.end(), tag), end; it != end; ++it) {
    rest.append(at, (*it)[0].first);
    at = (*it)[0].second;
    const std::string name = (*it)[2];
    if ((*it)[1].length() > 0) {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    } else if ((*it)[4].length() == 0) {
      roots += open.empty() ? 1 : 0;
      open.push_back(name);
    }
  }
  rest.append(at, text.cend());
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(roots, 1);
  EXPECT_EQ(rest.find_first_of("<>&"), std::string::npos);
}

TEST(ScheduleDiagram, SmallOnesWorkedOutByHand) {
  EXPECT_THAT(drawn({PipelineKind::GPipe, 2, 2, 1}, 27),
              HasSubstr("rank 0 |F0F1......B0--B1--|\n"
                        "rank 1 |..F0F1B0--B1--....|\n"));
  EXPECT_THAT(drawn({PipelineKind::OneForwardOneBackward, 2, 2, 1}, 27),
              HasSubstr("rank 0 |F0F1....B0--..B1--|\n"
                        "rank 1 |..F0B0--F1B1--....|\n"));
  // Rank 1 delays its first backward_weight, so rank 0 gets its gradient sooner.
  EXPECT_THAT(drawn({PipelineKind::ZeroBubbleH1, 2, 2, 1}, 23),
              HasSubstr("rank 0 |F0F1..B0W0B1W1|\n"
                        "rank 1 |..F0B0F1B1W0W1|\n"));
  // F10 does not fit into two columns: only the letter is shown.
  EXPECT_THAT(drawn({PipelineKind::GPipe, 1, 11, 1}, 75), HasSubstr("F9F B0--"));
}

TEST(ScheduleDiagram, KeepsToItsColumns) {
  for (const int stages : {1, 4, 8, 12})
    for (const int rounds : {1, 2, 20})
      for (const int columns : {40, 100}) {
        std::istringstream lines(
            drawn({PipelineKind::Interleaved, stages, rounds * stages, 3}, columns));
        std::string line;
        std::size_t width = 0;
        for (int rank = 0; rank < stages; ++rank) {
          std::getline(lines, line);
          EXPECT_THAT(line, testing::StartsWith("rank "));
          EXPECT_THAT(line, testing::EndsWith("|"));
          EXPECT_LE(line.size(), static_cast<std::size_t>(columns));
          if (rank > 0) {
            EXPECT_EQ(line.size(), width);
          }
          width = line.size();
        }
      }
}

TEST(ScheduleDiagram, FourByEightShowsEveryNumber) {
  for (const auto kind :
       {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward, PipelineKind::ZeroBubbleH1}) {
    std::istringstream lines(drawn({kind, 4, 8, 1}, 100));
    std::string line;
    for (int rank = 0; rank < 4; ++rank) {
      std::getline(lines, line);
      for (int m = 0; m < 8; ++m)
        for (const char* letter : {"F", "B"})
          EXPECT_EQ(count_of(line, letter + std::to_string(m)), 1u) << line;
    }
  }
}

TEST(ScheduleDiagram, SvgIsWellFormedWithARectanglePerAction) {
  struct Case {
    PipelineShape shape;
    std::size_t legend, actions;
  };
  for (const Case& c : {Case{{PipelineKind::GPipe, 1, 1, 1}, 2, 2},
                        Case{{PipelineKind::OneForwardOneBackward, 4, 8, 1}, 2, 4 * 8 * 2},
                        Case{{PipelineKind::ZeroBubbleH1, 3, 5, 1}, 3, 3 * 5 * 3},
                        Case{{PipelineKind::Interleaved, 4, 8, 3}, 4, 4 * 8 * 3 * 2}}) {
    const std::string svg = svg_of(c.shape);
    expect_well_formed(svg);
    EXPECT_EQ(count_of(svg, "<rect "), 1 + c.legend + c.actions);  // 1: the background
    EXPECT_EQ(count_of(svg, ">rank "), static_cast<std::size_t>(c.shape.stages));
    EXPECT_EQ(count_of(svg, "<text "), c.legend + c.actions + c.shape.stages);
  }
}

TEST(ScheduleDiagram, RectanglesOfARankDoNotOverlap) {
  const std::string svg = svg_of({PipelineKind::Interleaved, 4, 8, 2});
  const std::regex rectangle("<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\"");
  double y = -1, end = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), rectangle), last; it != last; ++it) {
    if (std::stod((*it)[2]) < 40) continue;  // background and legend
    if (std::stod((*it)[2]) != y) end = 0;
    y = std::stod((*it)[2]);
    EXPECT_GE(std::stod((*it)[1]), end - 0.02);
    end = std::stod((*it)[1]) + std::stod((*it)[3]);
  }
  EXPECT_GT(end, 0);
}

}  // namespace
}  // namespace kintsugi
