#pragma once

#include <string>
#include <string_view>

namespace kintsugi {

// Whether a file looks like tiktoken's: lines of a token in base64, a space and its rank.
bool is_tiktoken(std::string_view content);

// The family that a well-known file name stands for ("cl100k_base.tiktoken"); empty if none.
std::string tiktoken_family_of(std::string_view file_name);

// The tokenizer.json that gives the ids of a rank file. The pre-tokenizer is that of the family,
// whose special tokens follow the ranks where the family puts them. UserErrors name the line but
// not the file.
std::string tiktoken_to_json(std::string_view content, const std::string& family);

}  // namespace kintsugi
