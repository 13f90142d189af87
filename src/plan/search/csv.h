#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// A CSV table with a header line and RFC 4180 quoting. UserError with the line number for
// unterminated quotes and for rows whose number of cells differs from the header.
class CsvTable {
 public:
  CsvTable(const std::string& text, std::string source);

  const std::string& source() const { return source_; }
  const std::vector<std::string>& header() const { return header_; }
  std::size_t rows() const { return cells_.size(); }
  const std::vector<std::string>& row(std::size_t i) const { return cells_[i]; }
  int line(std::size_t i) const { return lines_[i]; }  // line number of row i, from 1
  // "" if there is no such column.
  const std::string& at(std::size_t row, const std::string& column) const;
  bool has(const std::string& column) const { return column_of(column) >= 0; }
  // NaN if the cell is empty or the column is missing; UserError if the cell is not a number.
  double number(std::size_t row, const std::string& column) const;
  // A number from 0 to 1e8, or `otherwise` if the cell is empty or missing; UserError with the line
  // number for other values.
  double quantity(std::size_t row, const std::string& column, double otherwise) const;
  double checked_quantity(std::size_t row, const std::string& name, double value) const;

 private:
  int column_of(const std::string& column) const;

  std::string source_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> cells_;
  std::vector<int> lines_;
};

std::string csv_line(const std::vector<std::string>& cells);  // quoted where needed, with newline

}  // namespace kintsugi
