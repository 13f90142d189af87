#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// Statistics of the document lengths of a store.
struct LengthSummary {
  std::int64_t shortest = 0, longest = 0;
  std::int64_t median = 0;  // of an even number, the upper one
  // [0]: empty documents; [k]: documents of 2^(k-1) … 2^k - 1 tokens.
  std::array<std::int64_t, 65> by_log2{};
};
LengthSummary summarize_lengths(const std::vector<TokenShard>& shards);

}  // namespace kintsugi
