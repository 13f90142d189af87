#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// How a cell of a terminal looks. Without colours all are the same.
enum class CellStyle : std::uint8_t { Plain, Bold, Dim, Good, Warning, Bad, Curve, Mark, Chosen };

// A rectangle of terminal cells that text is drawn into. What does not fit is cut off, so that no
// text, of whatever width, moves the text beside it.
class Canvas {
 public:
  Canvas(int columns, int rows);

  int columns() const { return columns_; }
  int rows() const { return rows_; }

  // Draws text in a row from `column` on, up to the column `end` (not included), and returns the
  // column after it. Control characters and damaged UTF-8 are drawn as `printable` writes them;
  // characters that have no width or change the direction of writing are left out.
  int text(int row, int column, int end, std::string_view text, CellStyle style = {});
  void put(int row, int column, char32_t character, CellStyle style = {});

  // One UTF-8 text for each row, without spaces at its end. `colours`: with escape sequences.
  std::vector<std::string> lines(bool colours) const;

 private:
  struct Cell {
    char32_t character = U' ';  // 0: the second half of a wide character
    CellStyle style = CellStyle::Plain;
  };
  Cell& at(int row, int column) {
    return cells_[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns_) +
                  static_cast<std::size_t>(column)];
  }

  int columns_, rows_;
  std::vector<Cell> cells_;
};

// The cells that text takes in a row.
int display_width(std::string_view text);

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

struct BarAmount {
  double amount = 0;
  char32_t glyph = U'█';
  CellStyle style = CellStyle::Plain;
};
// A horizontal bar that the parts share: the columns of all parts add up to `columns`, and a part
// that is not 0 is never larger than its amount by a whole column.
void draw_bar(Canvas& canvas, int row, int column, int columns,
              const std::vector<BarAmount>& parts);

}  // namespace kintsugi
