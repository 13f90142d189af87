#include "plan/search/csv.h"

#include <cmath>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {

CsvTable::CsvTable(const std::string& text, std::string source) : source_(std::move(source)) {
  std::vector<std::string> cells(1);
  bool quoted = false, any = false;
  int line = 1, first = 1;
  const auto end_row = [&] {
    if (any) {
      if (header_.empty())
        header_ = cells;
      else if (cells.size() != header_.size())
        user_error("{} line {}: {} cells, but the header has {}", source_, first, cells.size(),
                   header_.size());
      else {
        cells_.push_back(cells);
        lines_.push_back(first);
      }
    }
    cells.assign(1, "");
    any = false;
    first = line;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"')
        cells.back() += c;
      else if (i + 1 < text.size() && text[i + 1] == '"')
        cells.back() += text[++i];
      else
        quoted = false;
    } else if (c == '"') {
      if (!cells.back().empty())
        user_error("{} line {}: a quote inside an unquoted cell", source_, line);
      quoted = any = true;
    } else if (c == ',') {
      cells.emplace_back();
      any = true;
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      cells.back() += c;
      any = true;
    }
  }
  if (quoted) user_error("{} line {}: a quoted cell does not end", source_, first);
  end_row();
  if (header_.empty()) user_error("{} has no header line", source_);
}

int CsvTable::column_of(const std::string& column) const {
  for (std::size_t i = 0; i < header_.size(); ++i)
    if (header_[i] == column) return static_cast<int>(i);
  return -1;
}

const std::string& CsvTable::at(std::size_t row, const std::string& column) const {
  static const std::string none;
  const int i = column_of(column);
  return i < 0 ? none : cells_[row][static_cast<std::size_t>(i)];
}

double CsvTable::number(std::size_t row, const std::string& column) const {
  const std::string& text = at(row, column);
  if (text.empty()) return std::nan("");
  try {
    return parse_real(text);
  } catch (const UserError&) {
    user_error("{} line {}: {} is '{}', which is not a number", source_, line(row), column, text);
  }
}

double CsvTable::quantity(std::size_t row, const std::string& column, double otherwise) const {
  const double value = number(row, column);
  return std::isnan(value) ? otherwise : checked_quantity(row, column, value);
}

double CsvTable::checked_quantity(std::size_t row, const std::string& name, double value) const {
  if (value >= 0 && value <= 1e8) return value;
  user_error("{} line {}: {} is {}: it must be from 0 to 100 million", source_, line(row), name,
             value);
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    if (&cell != &cells.front()) line += ',';
    if (cell.find_first_of(",\"\n\r") == std::string::npos) {
      line += cell;
      continue;
    }
    line += '"';
    for (const char c : cell) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    line += '"';
  }
  return line + "\n";
}

}  // namespace kintsugi
