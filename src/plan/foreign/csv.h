#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// A table with a header line: comma separated, RFC 4180 quoting. UserError, with the line, for
// quotes that do not end and rows with another number of cells than the header.
class CsvTable {
 public:
  CsvTable(const std::string& text, std::string source);

  const std::string& source() const { return source_; }
  const std::vector<std::string>& header() const { return header_; }
  std::size_t rows() const { return cells_.size(); }
  const std::vector<std::string>& row(std::size_t i) const { return cells_[i]; }
  int line(std::size_t i) const { return lines_[i]; }  // where row i begins, from 1
  // "" where there is no such column.
  const std::string& at(std::size_t row, const std::string& column) const;
  bool has(const std::string& column) const { return column_of(column) >= 0; }
  // NaN where the cell is empty or the column is missing; UserError where it is no number.
  double number(std::size_t row, const std::string& column) const;
  // Of a size that models and layouts can have, or what the row is taken to mean where it says
  // nothing; UserError, with the line, for others.
  double quantity(std::size_t row, const std::string& column, double otherwise) const;
  double checked_quantity(std::size_t row, const std::string& name, double value) const;

 private:
  int column_of(const std::string& column) const;

  std::string source_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> cells_;
  std::vector<int> lines_;
};

std::string csv_line(const std::vector<std::string>& cells);  // quoted where needed, with its end

}  // namespace kintsugi
