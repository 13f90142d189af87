#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace kintsugi {

// The part of a model that one rank holds: some of its layers, each sharded over `tp` ranks.
struct ModelShard {
  int tp = 1;
  int tp_rank = 0;
  bool sequence_parallel = false;  // the tp ranks also shard the rows of the residual stream
  // The experts of a layer are on so many data ranks, each with tp tensor ranks.
  int experts = 1;
  int experts_rank = 0;
  std::vector<int> layers = {};  // ascending
  bool embedding = true;
  bool head = true;
};
ModelShard whole_model(const ModelConfig& config);

// Number of neighbouring tp ranks that hold the same key and value heads: more than 1 if there are
// fewer such heads than ranks.
int kv_copies(std::int64_t kv_heads, int tp);

// How tensor parallelism shards a parameter: along one dimension. The dimension may consist of
// several parts that are sharded separately (GPT-2's q, k and v side by side).
struct TensorShard {
  int dimension = -1;  // -1: not sharded, every rank has all of it
  int parts = 1;
  int ranks = 1;
  int copies = 1;  // neighbouring ranks that hold the same shard
  // The dimension is not split: this rank holds all of it, and the others nothing.
  int owner = -1;

  Shape local(const Shape& global, int rank) const;
};

// Elements [local, local + count) of a rank's shard are elements [global, global + count) of the
// whole parameter.
struct ShardRange {
  std::int64_t local = 0, global = 0, count = 0;
};
// Calls use() for each contiguous range of the local elements [first, last), in ascending order.
// Skips padding, which the last rank has if the dimension does not divide evenly.
void for_each_range(const TensorShard& shard, const Shape& global, int rank, std::int64_t first,
                    std::int64_t last, const std::function<void(const ShardRange&)>& use);

// Rows [begin, end) of a parameter that is not sharded, or sharded along dimension 0 as one part.
struct RowRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
RowRange rows_of(const TensorShard& shard, const Shape& global, int rank);

// How context ranks attend to each other's tokens: keys and values travel around a ring, or an
// all-to-all gives every rank all tokens of some of the heads (Ulysses).
enum class ContextMethod : std::uint8_t { Ring, Ulysses };
std::string_view to_string(ContextMethod method);
ContextMethod parse_context_method(std::string_view text);

// How context parallelism shards a sequence of `length` tokens. For a ring: into 2 * ranks chunks
// of equal length. Rank r holds chunks r and 2 * ranks - 1 - r, one early and one late, so that
// causal attention costs the same on every rank. For Ulysses: rank r holds the r-th of `ranks`
// equal chunks. A single rank holds the whole sequence.
struct ContextShard {
  int ranks = 1;
  int rank = 0;
  std::int64_t length = 0;
  ContextMethod method = ContextMethod::Ring;

  std::int64_t local_length() const { return length / ranks; }
  // The position in the sequence of a local token. Ascending in `local`.
  std::int64_t position(std::int64_t local) const;
};

// Throws UserError unless sequences of this length can be sharded over this many ranks of a ring.
void check_context_shard(std::int64_t length, int ranks);

// For a ring. first_keys (ranks, sequences, local length): for each local query, the index of the
// first visible key among each rank's local keys; the number of keys if none is visible.
// document_starts (sequences, local length): the position where each query's document starts.
void first_visible_keys(std::span<std::int32_t> first_keys, const ContextShard& shard,
                        std::span<const std::int32_t> document_starts);

}  // namespace kintsugi
