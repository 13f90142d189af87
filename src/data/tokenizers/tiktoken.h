#pragma once

#include <string>
#include <string_view>

namespace kintsugi {

// Whether a file is a tiktoken rank file: lines of a token in base64, a space and its rank.
bool is_tiktoken(std::string_view content);

// The family of a well-known file name ("cl100k_base.tiktoken"); empty if unknown.
std::string tiktoken_family_of(std::string_view file_name);

// Converts a rank file to a tokenizer.json with the same ids. The family determines the
// pre-tokenizer and the special tokens, which follow the ranks. UserErrors name the line, but not
// the file.
std::string tiktoken_to_json(std::string_view content, const std::string& family);

}  // namespace kintsugi
