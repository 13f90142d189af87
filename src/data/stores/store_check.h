#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// Reads a whole shard and says what is wrong with it, one sentence each, the first of each kind:
// pointers that do not follow one another, lengths, document boundaries, ids outside the
// vocabulary, checksums of PREFIX.json.
std::vector<std::string> check_shard(const TokenShard& shard,
                                     std::optional<std::int64_t> vocab_size, const StoreInfo* info);

}  // namespace kintsugi
