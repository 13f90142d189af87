#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace kintsugi {

// What `kintsugi data explore` shows of a directory that `data curate` or `data dedup` has written,
// or is writing (docs/curation.md). Nobody vouches for the files: a UserError names one that is
// damaged or too large, and the memory is bounded. All texts in the results are as hostile as the
// documents.

// UserError unless the directory has a curation.json or a dedup.json.
void check_explored_directory(const std::filesystem::path& directory);

// Its statistics and examples: "kind" is "curation" or "dedup".
nlohmann::ordered_json explored_overview(const std::filesystem::path& directory);

// {"seed", "documents": [{"file", "text", "bytes", "origin", "language", "url"}], "notes"}
nlohmann::ordered_json explored_sample(const std::filesystem::path& directory, std::uint64_t seed,
                                       std::size_t count);

}  // namespace kintsugi
