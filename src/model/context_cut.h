#pragma once

#include <cstdint>
#include <span>

namespace kintsugi {

// A sequence of `length` tokens cut among the ranks of a context-parallel group: 2 * ranks chunks
// of equal length, of which rank r holds chunks r and 2 * ranks - 1 - r, one early and one late, so
// that causal attention costs every rank the same. One rank holds everything.
struct ContextCut {
  int ranks = 1;
  int rank = 0;
  std::int64_t length = 0;

  std::int64_t local_length() const { return length / ranks; }
  // The place in the sequence of a token of this rank; rises with it.
  std::int64_t position(std::int64_t local) const;
};

// UserError unless sequences of this length can be cut among so many ranks.
void check_context_cut(std::int64_t length, int ranks);

// From the place in the sequence where each local query's document starts, (sequences, local
// length), to the first key that it sees among each rank's local ones, (ranks, sequences, local
// length); as many as there are keys where it sees none of them.
void first_visible_keys(std::span<std::int32_t> first_keys, const ContextCut& cut,
                        std::span<const std::int32_t> document_starts);

}  // namespace kintsugi
