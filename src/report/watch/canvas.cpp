#include "report/watch/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "core/log.h"

namespace kintsugi {
namespace {

struct CharacterRange {
  char32_t first, last;
};

bool is_in(char32_t character, const auto& ranges) {
  return std::any_of(std::begin(ranges), std::end(ranges), [=](const CharacterRange& range) {
    return character >= range.first && character <= range.last;
  });
}

// Combining marks, joiners, variation selectors, and marks that reverse the direction of writing:
// a hostile name could use them to move or to hide text.
constexpr CharacterRange kWithoutWidth[] = {
    {0x00AD, 0x00AD}, {0x0300, 0x036F}, {0x0483, 0x0489},  {0x0591, 0x05BD}, {0x0610, 0x061C},
    {0x064B, 0x065F}, {0x180B, 0x180E}, {0x1AB0, 0x1AFF},  {0x1DC0, 0x1DFF}, {0x200B, 0x200F},
    {0x2028, 0x202E}, {0x2060, 0x206F}, {0x20D0, 0x20FF},  {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F},
    {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE0FFF}};

// East Asian scripts and pictures: two cells.
constexpr CharacterRange kWide[] = {
    {0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},  {0xA960, 0xA97F}, {0xAC00, 0xD7A3},
    {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},  {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F},
    {0x1F680, 0x1F6FF}, {0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD}};

int width_of(char32_t character) {
  if (character < 0x300) return character == 0xAD ? 0 : 1;
  if (is_in(character, kWithoutWidth)) return 0;
  return is_in(character, kWide) ? 2 : 1;
}

// Takes the first character off a valid UTF-8 text.
char32_t take_character(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t character = length == 1 ? first : first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i)
    character = (character << 6) | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  text.remove_prefix(length);
  return character;
}

void append_utf8(char32_t c, std::string& text) {
  const auto byte = [&](char32_t value) { text += static_cast<char>(value); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) {
    byte(0xC0 | (c >> 6));
  } else {
    if (c < 0x10000) {
      byte(0xE0 | (c >> 12));
    } else {
      byte(0xF0 | (c >> 18));
      byte(0x80 | ((c >> 12) & 0x3F));
    }
    byte(0x80 | ((c >> 6) & 0x3F));
  }
  byte(0x80 | (c & 0x3F));
}

const char* escape_of(CellStyle style) {
  constexpr std::array<const char*, 9> kEscapes = {"\x1b[0m",    "\x1b[0;1m",  "\x1b[0;2m",
                                                   "\x1b[0;32m", "\x1b[0;33m", "\x1b[0;31m",
                                                   "\x1b[0;36m", "\x1b[0;35m", "\x1b[0;7m"};
  return kEscapes[static_cast<std::size_t>(style)];
}

// One line of what files contain: line ends and tabs are spaces.
std::string on_one_row(std::string_view text) {
  std::string row = printable(text);
  std::replace(row.begin(), row.end(), '\n', ' ');
  std::replace(row.begin(), row.end(), '\t', ' ');
  return row;
}

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

Canvas::Canvas(int columns, int rows)
    : columns_(std::max(columns, 0)),
      rows_(std::max(rows, 0)),
      cells_(static_cast<std::size_t>(columns_) * static_cast<std::size_t>(rows_)) {}

void Canvas::put(int row, int column, char32_t character, CellStyle style) {
  if (row < 0 || row >= rows_ || column < 0 || column >= columns_) return;
  at(row, column) = {character, style};
}

int Canvas::text(int row, int column, int end, std::string_view text, CellStyle style) {
  const std::string shown = on_one_row(text);
  end = std::min(end, columns_);
  for (std::string_view rest = shown; !rest.empty();) {
    const char32_t character = take_character(rest);
    const int width = width_of(character);
    if (width == 0) continue;
    if (column + width > end) break;
    put(row, column, character, style);
    if (width == 2) put(row, column + 1, 0, style);
    column += width;
  }
  return column;
}

std::vector<std::string> Canvas::lines(bool colours) const {
  std::vector<std::string> lines;
  for (int row = 0; row < rows_; ++row) {
    const auto begin = cells_.begin() + static_cast<std::ptrdiff_t>(row) * columns_;
    const auto is_drawn = [](const Cell& cell) {
      return cell.character != U' ' || cell.style == CellStyle::Chosen;
    };
    const auto last = std::find_if(std::make_reverse_iterator(begin + columns_),
                                   std::make_reverse_iterator(begin), is_drawn)
                          .base();
    std::string line;
    CellStyle style = CellStyle::Plain;
    for (auto cell = begin; cell != last; ++cell) {
      if (colours && cell->style != style) line += escape_of(cell->style);
      style = cell->style;
      if (cell->character != 0) append_utf8(cell->character, line);
    }
    if (colours && style != CellStyle::Plain) line += escape_of(CellStyle::Plain);
    lines.push_back(std::move(line));
  }
  return lines;
}

int display_width(std::string_view text) {
  const std::string shown = on_one_row(text);
  int width = 0;
  for (std::string_view rest = shown; !rest.empty();) width += width_of(take_character(rest));
  return width;
}

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

void draw_bar(Canvas& canvas, int row, int column, int columns,
              const std::vector<BarAmount>& parts) {
  double total = 0;
  for (const BarAmount& part : parts) total += std::max(part.amount, 0.0);
  if (!(total > 0) || !std::isfinite(total)) return;
  double sum = 0;
  int drawn = 0;
  for (const BarAmount& part : parts) {
    sum += std::max(part.amount, 0.0);
    // Ends are rounded, not widths: the widths of all parts add up.
    const int end = static_cast<int>(std::lround(sum / total * columns));
    for (; drawn < end; ++drawn) canvas.put(row, column + drawn, part.glyph, part.style);
  }
}

}  // namespace kintsugi
