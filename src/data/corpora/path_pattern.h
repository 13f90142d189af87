#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kintsugi {

// Whether a name holds * ? [ or {. One that exists as it stands is no pattern.
bool is_pattern(const std::string& name);
// What a shell would make of it, sorted; nothing where nothing matches.
std::vector<std::filesystem::path> expand_pattern(const std::string& pattern);

// Files for patterns ('corpus/*.jsonl.zst') and plain names, each once, sorted within a pattern. A
// pattern that matches nothing is a UserError, and so is a directory.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns);

}  // namespace kintsugi
