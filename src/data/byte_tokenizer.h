#pragma once

#include <cstdint>
#include <string>

namespace kintsugi {

// Raw bytes as tokens, told to Hugging Face as a byte-level BPE without merges: id = byte value.
std::string byte_tokenizer_json();
std::string byte_tokenizer_config_json(std::int64_t max_positions);
// Whether a tokenizer.json is that tokenizer.
bool is_byte_tokenizer(const std::string& tokenizer_json);

}  // namespace kintsugi
