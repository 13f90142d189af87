#pragma once

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

}  // namespace kintsugi
