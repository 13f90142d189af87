#include "backend/attention_mask.h"

#include <array>

namespace kintsugi {
namespace {

struct Chunk {
  std::int64_t first, tokens;
};

std::array<Chunk, 2> chunks_of(const TokenPositions& positions, std::int64_t tokens) {
  const std::int64_t early = std::min(tokens, positions.chunk);
  return {{{positions.first, early}, {positions.second, tokens - early}}};
}

// The number of (query, key) pairs where query i sees the keys up to first + i.
double causal_pairs(std::int64_t queries, std::int64_t keys, std::int64_t first) {
  // Queries before `none` see no key; queries from `all` on see every key.
  const std::int64_t none = std::clamp<std::int64_t>(-first, 0, queries);
  const std::int64_t all = std::clamp<std::int64_t>(keys - 1 - first, none, queries);
  const double ramp = static_cast<double>(all - none);
  const double lowest = static_cast<double>(first + none + 1);
  return ramp * lowest + ramp * (ramp - 1) / 2 +
         static_cast<double>(queries - all) * static_cast<double>(keys);
}

}  // namespace

double AttentionMask::pairs() const {
  double sum = 0;
  for (const Chunk& q : chunks_of(query_positions, queries))
    for (const Chunk& k : chunks_of(key_positions, keys)) {
      sum += causal_pairs(q.tokens, k.tokens, q.first - k.first);
      if (window > 0) sum -= causal_pairs(q.tokens, k.tokens, q.first - k.first - window);
    }
  return sum;
}

bool sees_anything(const AttentionOptions& options, std::int64_t queries, std::int64_t keys) {
  return AttentionMask(options, queries, keys).pairs() > 0;
}

}  // namespace kintsugi
