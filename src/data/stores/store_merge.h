#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/stores/store_info.h"

namespace kintsugi {

// Concatenates stores of one token type into one shard, document by document, in bounded memory.
// Stores from the same tokenizer keep its PREFIX.json. The final names appear at the end.
StoreInfo merge_stores(const std::vector<std::string>& names, const std::filesystem::path& output,
                       bool overwrite);

}  // namespace kintsugi
