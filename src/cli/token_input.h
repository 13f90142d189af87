#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// "12, 7 9" -> {12, 7, 9}
std::vector<std::int32_t> parse_token_ids(std::string_view text);

// Throws UserError unless the directory's tokenizer is the byte tokenizer, the one this version can
// run.
void require_byte_tokenizer(const std::filesystem::path& checkpoint);

}  // namespace kintsugi
