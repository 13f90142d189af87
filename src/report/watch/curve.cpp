#include "report/watch/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace kintsugi {
namespace {

constexpr int kLabelColumns = 9;  // of the y axis
constexpr int kLeastPlotColumns = 8;
constexpr char32_t kBraille = 0x2800;

struct PlotRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // 0 at `low`, 1 at `high`; the middle if both are the same.
  double position(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

// Maps points to dots: two in the width of a cell, four in its height.
class DotGrid {
 public:
  DotGrid(Canvas& canvas, const CanvasArea& area)
      : canvas_(canvas),
        area_(area),
        dots_(static_cast<std::size_t>(area.columns) * static_cast<std::size_t>(area.rows), 0) {}

  int width() const { return 2 * area_.columns; }
  int height() const { return 4 * area_.rows; }

  void dot(int x, int y, CellStyle style) {
    // The bits of a braille character by column and row.
    static constexpr unsigned char kBits[2][4] = {{0x01, 0x02, 0x04, 0x40},
                                                  {0x08, 0x10, 0x20, 0x80}};
    unsigned char& cell =
        dots_[static_cast<std::size_t>(y / 4) * static_cast<std::size_t>(area_.columns) +
              static_cast<std::size_t>(x / 2)];
    cell |= kBits[x % 2][y % 4];
    canvas_.put(area_.row + y / 4, area_.column + x / 2, kBraille + cell, style);
  }

  void mark(int x, int y, CellStyle style) {
    canvas_.put(area_.row + y / 4, area_.column + x / 2, U'●', style);
  }

  void line(int x0, int y0, int x1, int y1, CellStyle style) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i)
      dot(x0 + static_cast<int>(std::lround(static_cast<double>(x1 - x0) * i / steps)),
          y0 + static_cast<int>(std::lround(static_cast<double>(y1 - y0) * i / steps)), style);
  }

 private:
  Canvas& canvas_;
  CanvasArea area_;
  std::vector<unsigned char> dots_;
};

// The coordinate on the axis; empty: it cannot be drawn.
std::optional<double> on_axis(double value, bool logarithmic) {
  if (logarithmic) value = value > 0 ? std::log10(value) : std::nan("");
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

struct PlotRanges {
  PlotRange x, y;
};

PlotRanges ranges_of(const std::vector<PlotLine>& lines, bool logarithmic) {
  PlotRanges ranges;
  for (const PlotLine& line : lines)
    for (const auto& [x, y] : line.points) {
      const auto px = on_axis(x, logarithmic), py = on_axis(y, logarithmic);
      if (!px || !py) continue;
      ranges.x.add(*px);
      ranges.y.add(*py);
    }
  return ranges;
}

// A point without a neighbour would be a single dot, which is easily overlooked.
bool has_one_point(const PlotLine& line, bool logarithmic) {
  return std::count_if(line.points.begin(), line.points.end(), [&](const auto& point) {
           return on_axis(point.first, logarithmic) && on_axis(point.second, logarithmic);
         }) == 1;
}

void draw_line(DotGrid& grid, const PlotLine& line, const PlotRanges& ranges, bool logarithmic) {
  const bool marked = !line.joined || has_one_point(line, logarithmic);
  bool begun = false;
  int before_x = 0, before_y = 0;
  for (const auto& [x, y] : line.points) {
    const auto px = on_axis(x, logarithmic), py = on_axis(y, logarithmic);
    const bool drawn = px && py;
    if (drawn) {
      const int dot_x = static_cast<int>(std::lround(ranges.x.position(*px) * (grid.width() - 1))),
                dot_y = static_cast<int>(
                    std::lround((1 - ranges.y.position(*py)) * (grid.height() - 1)));
      if (marked)
        grid.mark(dot_x, dot_y, line.style);
      else
        grid.line(begun ? before_x : dot_x, begun ? before_y : dot_y, dot_x, dot_y, line.style);
      before_x = dot_x;
      before_y = dot_y;
    }
    begun = drawn;
  }
}

double value_at(double coordinate, bool logarithmic) {
  return logarithmic ? std::pow(10.0, coordinate) : coordinate;
}

}  // namespace

void draw_plot(Canvas& canvas, const CanvasArea& area, const std::vector<PlotLine>& lines,
               bool logarithmic) {
  const CanvasArea inner{.row = area.row,
                         .column = area.column + kLabelColumns,
                         .columns = area.columns - kLabelColumns,
                         .rows = area.rows - 1};
  const PlotRanges ranges = ranges_of(lines, logarithmic);
  if (ranges.x.empty() || inner.columns < kLeastPlotColumns || inner.rows < 1) return;
  const auto y_label = [&](int row, double value) {
    canvas.text(row, area.column, inner.column - 1,
                fmt::format("{:>{}.4g}", value_at(value, logarithmic), kLabelColumns - 1),
                CellStyle::Dim);
  };
  y_label(inner.row, ranges.y.high);
  if (inner.rows > 1 && ranges.y.low < ranges.y.high)
    y_label(inner.row + inner.rows - 1, ranges.y.low);
  const int bottom = inner.row + inner.rows, end = area.column + area.columns;
  const std::string first = fmt::format("{:.0f}", value_at(ranges.x.low, logarithmic)),
                    last = fmt::format("step {:.0f}", value_at(ranges.x.high, logarithmic));
  const int width = display_width(last);
  if (ranges.x.low == ranges.x.high) {  // below the points, in the middle
    const int column = inner.column + (inner.columns - width) / 2;
    canvas.text(bottom, std::max(area.column, column), end, last, CellStyle::Dim);
  } else {
    if (display_width(first + " " + last) <= inner.columns)
      canvas.text(bottom, inner.column, end, first, CellStyle::Dim);
    canvas.text(bottom, std::max(area.column, end - width), end, last, CellStyle::Dim);
  }
  DotGrid grid(canvas, inner);
  for (const PlotLine& line : lines) draw_line(grid, line, ranges, logarithmic);
}

std::string sparkline(const std::vector<double>& values, int columns) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto count = std::min(values.size(), static_cast<std::size_t>(std::max(columns, 0)));
  const auto first = values.end() - static_cast<std::ptrdiff_t>(count);
  PlotRange range;
  for (auto value = first; value != values.end(); ++value)
    if (std::isfinite(*value)) range.add(*value);
  std::string text;
  for (auto value = first; value != values.end(); ++value)
    text += std::isfinite(*value)
                ? kBlocks[std::min(7, static_cast<int>(range.position(*value) * 8))]
                : " ";
  return text;
}

void draw_bar(Canvas& canvas, int row, int column, int columns, const std::vector<BarPart>& parts) {
  double total = 0;
  for (const BarPart& part : parts) total += std::max(part.amount, 0.0);
  if (!(total > 0) || !std::isfinite(total)) return;
  double sum = 0;
  int drawn = 0;
  for (const BarPart& part : parts) {
    sum += std::max(part.amount, 0.0);
    // Ends are rounded, not widths: the widths of all parts add up.
    const int end = static_cast<int>(std::lround(sum / total * columns));
    for (; drawn < end; ++drawn) canvas.put(row, column + drawn, part.glyph, part.style);
  }
}

}  // namespace kintsugi
