#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// Raw bytes as tokens: id = byte value. No special tokens.
std::unique_ptr<Tokenizer> make_byte_tokenizer(TokenizerCompanions companions = {});

// The same tokenizer for Hugging Face, as a byte-level BPE without merges.
std::string byte_tokenizer_json();
std::string byte_tokenizer_config_json(std::int64_t max_positions);
// Whether a tokenizer.json is that tokenizer.
bool is_byte_tokenizer(const std::string& tokenizer_json);

}  // namespace kintsugi
