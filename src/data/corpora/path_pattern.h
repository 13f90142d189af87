#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kintsugi {

// Whether a name contains * ? [ or {. The name of an existing file is not a pattern.
bool is_pattern(const std::string& name);
// Expands a pattern as a shell does, sorted; empty if nothing matches.
std::vector<std::filesystem::path> expand_pattern(const std::string& pattern);

// Expands patterns ('corpus/*.jsonl.zst') and plain names to files: each file once, sorted within a
// pattern. UserError for a pattern that matches nothing and for a directory.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns);

}  // namespace kintsugi
