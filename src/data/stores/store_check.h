#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// Reads a whole shard and returns the errors found, one line each, the first one of each kind:
// pointers that are not consecutive, lengths, document boundaries, ids outside the vocabulary,
// checksums that differ from PREFIX.json. `read` is called with the bytes of each block that was
// read.
using BytesRead = std::function<void(std::int64_t bytes)>;
std::vector<std::string> check_shard(const TokenShard& shard,
                                     std::optional<std::int64_t> vocab_size, const StoreInfo* info,
                                     const BytesRead& read = {});
// All bytes that check_shard() reads if it finds no errors.
std::int64_t bytes_to_check(const TokenShard& shard, bool ids, const StoreInfo* info);

// Statistics of the document lengths of a store.
struct LengthSummary {
  std::int64_t shortest = 0, longest = 0;
  std::int64_t median = 0;  // of an even number, the upper one
  // [0]: empty documents; [k]: documents of 2^(k-1) … 2^k - 1 tokens.
  std::array<std::int64_t, 65> by_log2{};
};
LengthSummary summarize_lengths(const std::vector<TokenShard>& shards);

}  // namespace kintsugi
