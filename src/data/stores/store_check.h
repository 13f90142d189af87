#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// Reads a whole shard and returns the errors found, one line each, the first one of each kind:
// pointers that are not consecutive, lengths, document boundaries, ids outside the vocabulary,
// checksums that differ from PREFIX.json.
std::vector<std::string> check_shard(const TokenShard& shard,
                                     std::optional<std::int64_t> vocab_size, const StoreInfo* info);

}  // namespace kintsugi
