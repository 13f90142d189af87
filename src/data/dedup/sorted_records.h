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

// Records: `rows` values and a number, such as that of a document, all little-endian. They are
// sorted by all of these.
struct RecordForm {
  std::size_t rows = 8, value_bytes = 8, number_bytes = 4;

  std::size_t bytes() const { return rows * value_bytes + number_bytes; }
  std::uint64_t value(const char* record, std::size_t row) const;
  std::uint64_t number(const char* record) const;
  // Negative, 0 or positive; without the number: of the values only.
  int compare(const char* a, const char* b, bool with_number = true) const;
};

void sort_records(const RecordForm& form, std::string& records);

// Sorted records in bytes [begin, end) of a file.
struct RecordRange {
  std::filesystem::path file;
  std::uint64_t begin = 0, end = 0;
  std::optional<std::uint64_t> checksum = {};  // of the bytes
  std::string_view stage = {};                 // that wrote it
};

// Merges sorted ranges, each read in large blocks. One file is open at a time. A UserError names a
// file that is truncated, not sorted or has another checksum.
class RecordMerge {
 public:
  // What decides about records with equal values: their ranges, or first their numbers.
  enum class Ties : std::uint8_t { Ranges, Numbers };

  RecordMerge(const RecordForm& form, std::vector<RecordRange> ranges, std::int64_t memory,
              Ties ties = Ties::Ranges);
  ~RecordMerge();

  // The next record and its range. False: the end. The record is valid until the next call.
  bool next(const char*& record, std::size_t& range);

 private:
  struct Source;
  struct Player {  // a source and the first value of its record
    std::uint64_t key = 0;
    std::size_t source = 0;
  };
  Player player(std::size_t source) const;
  bool before(const Player& a, const Player& b) const;
  bool before_if_equal(std::size_t a, std::size_t b) const;
  void begin();
  void replay(Player player);

  RecordForm form_;
  Ties ties_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Player> losers_;  // a tree: [0] is the winner
  bool started_ = false;
};

}  // namespace kintsugi
