#pragma once

#include <cstdint>
#include <span>

namespace kintsugi {

// How context parallelism shards a sequence of `length` tokens: into 2 * ranks chunks of equal
// length. Rank r holds chunks r and 2 * ranks - 1 - r, one early and one late, so that causal
// attention costs the same on every rank. A single rank holds the whole sequence.
struct ContextShard {
  int ranks = 1;
  int rank = 0;
  std::int64_t length = 0;

  std::int64_t local_length() const { return length / ranks; }
  // The position in the sequence of a local token. Ascending in `local`.
  std::int64_t position(std::int64_t local) const;
};

// Throws UserError unless sequences of this length can be sharded over this many ranks.
void check_context_shard(std::int64_t length, int ranks);

// first_keys (ranks, sequences, local length): for each local query, the index of the first visible
// key among each rank's local keys; the number of keys if none is visible. document_starts
// (sequences, local length): the position where each query's document starts.
void first_visible_keys(std::span<std::int32_t> first_keys, const ContextShard& shard,
                        std::span<const std::int32_t> document_starts);

}  // namespace kintsugi
