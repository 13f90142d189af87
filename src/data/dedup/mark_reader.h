#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dedup/dedup_directory.h"
#include "data/dedup/sorted_records.h"

namespace kintsugi {

// Where a piece is, or a sequence of them begins, within a task. Places are in order.
inline std::uint64_t place_of(std::uint32_t document, std::size_t piece) {
  return std::uint64_t{document} << 32 | piece;
}
inline std::uint32_t document_of(std::uint64_t place) {
  return static_cast<std::uint32_t>(place >> 32);
}
inline std::size_t piece_of(std::uint64_t place) { return place & UINT32_MAX; }

// The records of pieces: a hash and a place.
inline constexpr RecordForm kSampleForm{.rows = 1, .value_bytes = 8, .number_bytes = 8};
inline constexpr RecordForm kSequenceForm{.rows = 2, .value_bytes = 8, .number_bytes = 8};

// What the stages Repeats and Copies say about a place of a task.
struct Mark {
  std::size_t piece;
  std::uint32_t skipped;  // pieces from there on that are not removed
};
inline constexpr RecordForm kMarkForm{.rows = 1, .value_bytes = 8, .number_bytes = 4};

// The marks of a task, of all buckets.
class MarkReader {
 public:
  MarkReader(const DedupDirectory& directory, DedupStage stage, std::size_t task,
             std::int64_t memory);

  // Of a document; to be called for each one in order.
  void take(std::uint32_t document, std::vector<Mark>& marks);
  // UserError if there are marks of further documents.
  void check_end() const;

 private:
  void advance();

  const DedupDirectory& directory_;
  DedupStage stage_;
  std::size_t task_;
  std::unique_ptr<RecordMerge> merge_;
  bool done_ = false;
  std::uint64_t place_ = 0;
  std::uint32_t number_ = 0;
};

}  // namespace kintsugi
