#include "parallel/schedule_diagram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

namespace kintsugi {
namespace {

// The shortest compute action: the unit of the drawing's grid.
double shortest_action(const PipelineSchedule& schedule, const PipelineTiming& timing) {
  double shortest = std::numeric_limits<double>::infinity();
  for (std::size_t rank = 0; rank < timing.spans.size(); ++rank)
    for (std::size_t i = 0; i < timing.spans[rank].size(); ++i)
      if (is_compute(schedule.ranks[rank][i].kind))
        shortest = std::min(shortest, timing.spans[rank][i].end - timing.spans[rank][i].start);
  return shortest;
}

// Calls draw(action, span) for every forward and backward of a rank.
template <class Draw>
void for_each_compute(const PipelineSchedule& schedule, const PipelineTiming& timing, int rank,
                      const Draw& draw) {
  for (std::size_t i = 0; i < timing.spans[rank].size(); ++i) {
    const Action& action = schedule.ranks[rank][i];
    if (is_compute(action.kind)) draw(action, timing.spans[rank][i]);
  }
}

// ---- characters

char letter(const Action& action) {
  const bool lower = action.chunk % 2 == 1;
  switch (action.kind) {
    case ActionKind::Forward:
      return lower ? 'f' : 'F';
    case ActionKind::BackwardWeight:
      return lower ? 'w' : 'W';
    default:
      return lower ? 'b' : 'B';
  }
}

// The letter and number, or only the letter if there is no room.
std::string cell(const Action& action, int width) {
  std::string text = letter(action) + std::to_string(action.micro_batch);
  if (static_cast<int>(text.size()) > width) text.resize(1);
  text.resize(width, action.kind == ActionKind::Forward ? ' ' : '-');
  return text;
}

double columns_per_time(const PipelineSchedule& schedule, const PipelineTiming& timing,
                        int columns) {
  const double cell = shortest_action(schedule, timing);
  const double whole = std::floor(columns * cell / timing.makespan);
  return whole >= 1 ? whole / cell : columns / timing.makespan;
}

std::string text_legend(const PipelineSchedule& schedule) {
  std::string text = "F forward, B backward";
  if (schedule.shape.kind == PipelineKind::ZeroBubbleH1)
    text = "F forward, B backward of the inputs, W of the weights";
  if (schedule.shape.chunks > 1) text += ", capitals for even chunks and small letters for odd";
  return text + "; number of the micro-batch if it fits; . idle\n";
}

// ---- SVG

constexpr double kCellWidth = 22, kRowHeight = 26, kLeft = 64, kTop = 44;

std::string_view colour(const Action& action) {
  const bool odd = action.chunk % 2 == 1;
  switch (action.kind) {
    case ActionKind::Forward:
      return odd ? "#4a86c5" : "#a9c9ea";
    case ActionKind::BackwardWeight:
      return odd ? "#d9822b" : "#f6c48f";
    default:
      return odd ? "#5aa469" : "#b3dcb9";
  }
}

std::string rectangle(double x, double y, double width, double height, std::string_view fill) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
      "stroke=\"#555\" stroke-width=\"0.5\"/>\n",
      x, y, width, height, fill);
}

std::string label(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     text);
}

std::string svg_legend(const PipelineSchedule& schedule) {
  const bool split = schedule.shape.kind == PipelineKind::ZeroBubbleH1;
  struct Entry {
    ActionKind kind;
    std::string_view name;
  };
  std::vector<Entry> entries = {{ActionKind::Forward, "forward"}};
  if (split) {
    entries.push_back({ActionKind::BackwardInput, "backward, inputs"});
    entries.push_back({ActionKind::BackwardWeight, "backward, weights"});
  } else {
    entries.push_back({ActionKind::Backward, "backward"});
  }
  std::string text;
  double x = kLeft;
  for (const Entry& entry : entries)
    for (int chunk = 0; chunk < std::min(2, schedule.shape.chunks); ++chunk) {
      text += rectangle(x, 12, 14, 14, colour({entry.kind, 0, chunk}));
      const std::string_view which =
          schedule.shape.chunks == 1 ? "" : (chunk == 0 ? ", even chunks" : ", odd chunks");
      text += label(x + 20, 23, "start", fmt::format("{}{}", entry.name, which));
      x += 170;
    }
  return text;
}

}  // namespace

std::string draw_schedule(const PipelineSchedule& schedule, const PipelineTiming& timing,
                          int columns) {
  const int stages = schedule.shape.stages;
  const int digits = static_cast<int>(std::to_string(stages - 1).size());
  const int room = std::max(1, columns - digits - 8);  // "rank 3 |" and the bar at the end
  const double scale = columns_per_time(schedule, timing, room);
  const auto column = [&](double time) { return static_cast<int>(std::lround(time * scale)); };
  std::string text;
  for (int rank = 0; rank < stages; ++rank) {
    std::string row(column(timing.makespan), '.');
    for_each_compute(schedule, timing, rank, [&](const Action& action, const Span& span) {
      const int from = column(span.start), width = column(span.end) - from;
      if (width > 0) row.replace(from, width, cell(action, width));
    });
    text += fmt::format("rank {:>{}} |{}|\n", rank, digits, row);
  }
  return text + text_legend(schedule);
}

std::string schedule_svg(const PipelineSchedule& schedule, const PipelineTiming& timing) {
  const double scale = kCellWidth / shortest_action(schedule, timing);
  // At least as wide as the legend.
  const double width = std::max(kLeft + timing.makespan * scale + 20, kLeft + 4 * 170);
  const double height = kTop + schedule.shape.stages * kRowHeight + 20;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<title>{2}, {3} stages, {4} micro-batches</title>\n",
      width, height, to_string(schedule.shape.kind), schedule.shape.stages,
      schedule.shape.micro_batches);
  text += rectangle(0, 0, width, height, "#ffffff") + svg_legend(schedule);
  for (int rank = 0; rank < schedule.shape.stages; ++rank) {
    const double y = kTop + rank * kRowHeight;
    text += label(kLeft - 8, y + 16, "end", fmt::format("rank {}", rank));
    for_each_compute(schedule, timing, rank, [&](const Action& action, const Span& span) {
      const double x = kLeft + span.start * scale, wide = (span.end - span.start) * scale;
      text += rectangle(x, y, wide, kRowHeight - 4, colour(action));
      text += label(x + wide / 2, y + 15, "middle", std::to_string(action.micro_batch));
    });
  }
  return text + "</svg>\n";
}

}  // namespace kintsugi
