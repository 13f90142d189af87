#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/watch/canvas.h"

namespace kintsugi {

// A rectangle of a canvas, in cells.
struct CanvasArea {
  int row = 0, column = 0, columns = 0, rows = 0;
};

struct PlotLine {
  std::vector<std::pair<double, double>> points = {};  // x ascending; what is not finite is a gap
  CellStyle style = CellStyle::Curve;
  bool joined = true;  // false: separate marks
};

// Draws lines with braille dots, with the range of y at the left and that of x below. Later lines
// are drawn over earlier ones. `logarithmic`: both axes; points that are not positive are left out.
// Draws nothing if there is no point or no room.
void draw_plot(Canvas& canvas, const CanvasArea& area, const std::vector<PlotLine>& lines,
               bool logarithmic);

// The last values as blocks of eight heights, between the smallest and the largest of them. As many
// as there are columns; a space where a value is not finite.
std::string sparkline(const std::vector<double>& values, int columns);

struct BarPart {
  double amount = 0;
  char32_t glyph = U'█';
  CellStyle style = CellStyle::Plain;
};
// A horizontal bar that the parts share: the columns of all parts add up to `columns`, and a part
// that is not 0 is never larger than its amount by a whole column.
void draw_bar(Canvas& canvas, int row, int column, int columns, const std::vector<BarPart>& parts);

}  // namespace kintsugi
