#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/corpora/record_reader.h"

namespace kintsugi {

// A line of a file of examples.
struct ExampleLine {
  std::string file, text;
  std::uint64_t number = 0;  // from 1
};

// Runs f; a UserError names the file and the line first.
template <class F>
auto at_line(const ExampleLine& line, F f) {
  try {
    return f();
  } catch (const UserError& error) {
    user_error("{}:{}: {}", line.file, line.number, error.what());
  }
}

// Reads the lines of several files (JSONL, plain, gzip or zstd) in order, without empty ones.
class ExampleLines {
 public:
  explicit ExampleLines(std::vector<std::filesystem::path> files);
  // Lines of about this many bytes, at least one; none at the end.
  std::vector<ExampleLine> next(std::size_t bytes);
  double fraction_read() const;  // of the bytes on disk

 private:
  std::vector<std::filesystem::path> files_;
  std::size_t opened_ = 0;
  std::unique_ptr<RecordReader> reader_;
  std::uint64_t bytes_before_ = 0, bytes_total_ = 0;
};

}  // namespace kintsugi
