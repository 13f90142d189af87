#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/file.h"
#include "data/corpora/input_files.h"

namespace kintsugi {

// Environment variable with the path of libduckdb.so, where the system does not find it.
inline constexpr const char* kDuckdbVariable = "KINTSUGI_DUCKDB";
// Why Parquet cannot be read on this machine; empty: it can be.
std::string parquet_problem();

// Reads the rows of a Parquet file in their order, as JSON objects in one line, with DuckDB's
// library. Memory is bounded by a row group's pages and 2048 rows.
class ParquetReader {
 public:
  // Of the columns `keys` only, in which "a.b" is the member b of the struct a; empty: all columns.
  // UserError if there is no library or no such column.
  ParquetReader(const std::filesystem::path& path, std::vector<std::string> keys,
                std::uint64_t first_row);
  ~ParquetReader();
  ParquetReader(ParquetReader&&) noexcept;

  // Appends the next row; false at the end. DamagedInput with the row that cannot be read.
  bool next(std::string& json);
  // Goes on behind the rows that cannot be read.
  SkippedInput skip_damage(const DamagedInput& damage);

  std::uint64_t row() const;   // the next one, from 0
  std::uint64_t rows() const;  // of the file

 private:
  class File;
  std::unique_ptr<File> file_;
};

}  // namespace kintsugi
