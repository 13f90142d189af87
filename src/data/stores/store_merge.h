#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/progress.h"
#include "data/stores/store_info.h"

namespace kintsugi {

// Concatenates stores of one token type into one shard, document by document, in bounded memory. If
// all stores come from the same tokenizer, PREFIX.json is written too. The files get their final
// names at the end. `progress`: tokens.
StoreInfo merge_stores(const std::vector<std::string>& names, const std::filesystem::path& output,
                       bool overwrite, const ProgressCall& progress = {});

}  // namespace kintsugi
