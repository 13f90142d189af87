#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/hash.h"

namespace kintsugi {

// Records of a signature file: `rows` values and the number of a document (4 bytes), all
// little-endian. They are sorted by all of these.
struct RecordForm {
  std::size_t rows = 8, value_bytes = 8;

  std::size_t bytes() const { return rows * value_bytes + 4; }
  std::uint64_t value(const char* record, std::size_t row) const;
  static std::uint32_t document(const char* end_of_record);
  // Negative, 0 or positive; without the document: of the values only.
  int compare(const char* a, const char* b, bool with_document = true) const;
};

void sort_records(const RecordForm& form, std::string& records);

// Sorted records in bytes [begin, end) of a file.
struct RecordRange {
  std::filesystem::path file;
  std::uint64_t begin = 0, end = 0;
  std::optional<std::uint64_t> checksum = {};  // of the bytes
};

// Merges sorted ranges, each read in large blocks. One file is open at a time. A UserError names a
// file that is truncated, not sorted or has another checksum.
class RecordMerge {
 public:
  RecordMerge(const RecordForm& form, std::vector<RecordRange> ranges, std::int64_t memory);
  ~RecordMerge();

  // The next record and its range; equal records in the order of the ranges. False: the end. The
  // record is valid until the next call.
  bool next(const char*& record, std::size_t& range);

 private:
  struct Source;
  bool before(std::size_t a, std::size_t b) const;
  void replay(std::size_t source);

  RecordForm form_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::size_t> losers_;  // a tree: [0] is the winner
  bool started_ = false;
};

}  // namespace kintsugi
