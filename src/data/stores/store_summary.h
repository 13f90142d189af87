#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// How long the documents of a store are.
struct LengthSummary {
  std::int64_t shortest = 0, longest = 0;
  std::int64_t median = 0;  // of a sorted list, the upper one of two
  // [0] empty documents, [k] those of 2^(k-1) … 2^k - 1 tokens.
  std::array<std::int64_t, 65> by_log2{};
};
LengthSummary summarize_lengths(const std::vector<TokenShard>& shards);

}  // namespace kintsugi
