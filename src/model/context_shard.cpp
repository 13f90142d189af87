#include "model/context_shard.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

std::int64_t ContextShard::position(std::int64_t local) const {
  if (ranks == 1) return local;
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
