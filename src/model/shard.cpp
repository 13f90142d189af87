#include "model/shard.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// The rows of one part of the sharded dimension that one rank holds: [begin, end), padded to
// `rows`.
struct PaddedRows {
  std::int64_t extent = 0;  // of the whole part
  std::int64_t rows = 0;    // per rank, with padding
  std::int64_t begin = 0, end = 0;
};

PaddedRows part_range(const TensorShard& shard, std::int64_t extent, int rank) {
  PaddedRows r;
  if (shard.owner >= 0) {
    r.extent = r.rows = rank == shard.owner ? extent : 0;
    r.end = r.rows;
    return r;
  }
  const std::int64_t shards = shard.ranks / shard.copies, index = rank / shard.copies;
  r.extent = extent / shard.parts;
  r.rows = (r.extent + shards - 1) / shards;
  r.begin = std::min(r.extent, index * r.rows);
  r.end = std::min(r.extent, r.begin + r.rows);
  return r;
}

}  // namespace

ModelShard whole_model(const ModelConfig& config) {
  ModelShard shard;
  shard.layers.resize(static_cast<std::size_t>(config.layers));
  std::iota(shard.layers.begin(), shard.layers.end(), 0);
  return shard;
}

int kv_copies(std::int64_t kv_heads, int tp) {
  return std::max(1, tp / static_cast<int>(kv_heads));
}

Shape TensorShard::local(const Shape& global, int rank) const {
  if (dimension < 0) return global;
  Shape shape = global;
  shape[dimension] = parts * part_range(*this, global[dimension], rank).rows;
  return shape;
}

void for_each_range(const TensorShard& shard, const Shape& global, int rank, std::int64_t first,
                    std::int64_t last, const std::function<void(const ShardRange&)>& use) {
  if (shard.dimension < 0 || shard.ranks == 1) {
    if (first < last) use({first, first, last - first});
    return;
  }
  const PaddedRows range = part_range(shard, global[shard.dimension], rank);
  std::int64_t rows = 1, width = 1;  // product of the dimensions before and after the sharded one
  for (int i = 0; i < shard.dimension; ++i) rows *= global[i];
  for (int i = shard.dimension + 1; i < global.rank(); ++i) width *= global[i];
  const std::int64_t block = range.rows * width;  // elements of one part in one row, with padding
  if (block == 0) return;
  for (std::int64_t at = first / block; at < rows * shard.parts && at * block < last; ++at) {
    const std::int64_t row = at / shard.parts, part = at % shard.parts;
    const std::int64_t local_begin = at * block;
    const std::int64_t global_begin =
        (row * global[shard.dimension] + part * range.extent + range.begin) * width;
    const std::int64_t from = std::max(first, local_begin),
                       to = std::min(last, local_begin + (range.end - range.begin) * width);
    if (from < to) use({from, global_begin + from - local_begin, to - from});
  }
}

RowRange rows_of(const TensorShard& shard, const Shape& global, int rank) {
  if (shard.dimension < 0) return {0, global[0]};
  KINTSUGI_CHECK(shard.dimension == 0 && shard.parts == 1,
                 "row range of a parameter sharded along dimension {} in {} parts", shard.dimension,
                 shard.parts);
  const PaddedRows range = part_range(shard, global[0], rank);
  return {range.begin, range.end};
}

std::string_view to_string(ContextMethod method) { return enum_name(method, {"ring", "ulysses"}); }

ContextMethod parse_context_method(std::string_view text) {
  for (const ContextMethod method : {ContextMethod::Ring, ContextMethod::Ulysses})
    if (text == to_string(method)) return method;
  user_error("'{}' is not a method of context parallelism: ring or ulysses", text);
}

std::int64_t ContextShard::position(std::int64_t local) const {
  if (ranks == 1) return local;
  if (method == ContextMethod::Ulysses) return rank * local_length() + local;
  const std::int64_t chunk = length / (2 * ranks);
  const std::int64_t first = local < chunk ? rank : 2 * ranks - 1 - rank;
  return first * chunk + local % chunk;
}

void check_context_shard(std::int64_t length, int ranks) {
  if (ranks == 1 || (length > 0 && length % (2 * ranks) == 0)) return;
  user_error(
      "sequences of {} tokens cannot be sharded over {} ranks: context parallelism needs a "
      "sequence "
      "length that is a multiple of {}",
      length, ranks, 2 * ranks);
}

void first_visible_keys(std::span<std::int32_t> first_keys, const ContextShard& shard,
                        std::span<const std::int32_t> document_starts) {
  KINTSUGI_CHECK(
      first_keys.size() == document_starts.size() * static_cast<std::size_t>(shard.ranks),
      "{} first keys of {} queries on {} ranks", first_keys.size(), document_starts.size(),
      shard.ranks);
  if (shard.ranks == 1) {
    std::copy(document_starts.begin(), document_starts.end(), first_keys.begin());
    return;
  }
  const auto chunk = static_cast<std::int32_t>(shard.length / (2 * shard.ranks));
  auto to = first_keys.begin();
  for (int rank = 0; rank < shard.ranks; ++rank) {
    const std::int32_t early = rank * chunk, late = (2 * shard.ranks - 1 - rank) * chunk;
    for (const std::int32_t start : document_starts)
      *to++ = std::clamp(start - early, 0, chunk) + std::clamp(start - late, 0, chunk);
  }
}

}  // namespace kintsugi
