#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kintsugi {

// A file with JSON of unknown origin. UserError if it is larger, damaged, or no regular file.
nlohmann::ordered_json read_explored_json(const std::filesystem::path& path,
                                          std::size_t most_bytes);

// Documents that a directory has as its result.
struct ExploredDocuments {
  std::vector<std::filesystem::path> files = {};
  std::string text_key = "text";
};

std::filesystem::path curation_file(
    const std::filesystem::path& directory);  // empty: there is none
nlohmann::ordered_json curation_overview(const std::filesystem::path& file);
ExploredDocuments curated_documents(const std::filesystem::path& file);

std::filesystem::path dedup_file(const std::filesystem::path& directory);  // empty: there is none
nlohmann::ordered_json dedup_overview(const std::filesystem::path& file);
ExploredDocuments deduplicated_documents(const std::filesystem::path& file);

}  // namespace kintsugi
