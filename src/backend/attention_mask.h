#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/backend.h"

namespace kintsugi {

// The range of keys [begin, end) that a query sees: causal, and within the window if there is one.
// Document boundaries are not included. begin and end never decrease from one query to the next.
// CUDA kernels use it, too.
struct AttentionMask {
  constexpr AttentionMask(const AttentionOptions& options, std::int64_t queries, std::int64_t keys)
      : queries(queries),
        keys(keys),
        window(options.window),
        key_positions(options.key_positions),
        query_positions(options.query_positions.value_or(
            TokenPositions{.first = options.key_positions.of(keys) - queries})) {}

  constexpr std::int64_t begin(std::int64_t query) const {
    return window == 0 ? 0 : key_positions.before(query_positions.of(query) - window + 1, keys);
  }
  constexpr std::int64_t end(std::int64_t query) const {
    return key_positions.before(query_positions.of(query) + 1, keys);
  }
  // The first query that sees `key`, if any query does.
  constexpr std::int64_t first_query(std::int64_t key) const {
    return query_positions.before(key_positions.of(key), queries);
  }
  // The number of (query, key) pairs that the mask keeps.
  double pairs() const;

  std::int64_t queries, keys, window;
  TokenPositions key_positions, query_positions;
};

}  // namespace kintsugi
