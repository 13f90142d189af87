#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// Raw bytes as tokens: id = byte value. No special tokens.
std::unique_ptr<Tokenizer> make_byte_tokenizer(TokenizerCompanions companions = {});

// The same tokenizer for Hugging Face, as a byte-level BPE without merges.
std::string byte_tokenizer_json();
std::string byte_tokenizer_config_json(std::int64_t max_positions);
// Whether a tokenizer.json is that tokenizer.
bool is_byte_tokenizer(const std::string& tokenizer_json);

// Parts of a tokenizer.json.
nlohmann::ordered_json byte_level_json(bool use_regex);
nlohmann::ordered_json special_token_json(std::size_t id, const std::string& content);
nlohmann::ordered_json bpe_model_json(nlohmann::ordered_json vocabulary,
                                      nlohmann::ordered_json merges);

// A SentencePiece model, run by the SentencePiece library. `model` is the content of the file;
// UserErrors do not name the file. Invalid UTF-8 becomes U+FFFD. If special tokens are honoured,
// the text on each side of one is encoded separately.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        TokenizerCompanions companions = {});

// Whether a file is a tiktoken rank file: lines of a token in base64, a space and its rank.
bool is_tiktoken(std::string_view content);

// The family of a well-known file name ("cl100k_base.tiktoken"); empty if unknown.
std::string tiktoken_family_of(std::string_view file_name);

// Converts a rank file to a tokenizer.json with the same ids. The family determines the
// pre-tokenizer and the special tokens, which follow the ranks. UserErrors name the line, but not
// the file.
std::string tiktoken_to_json(std::string_view content, const std::string& family);

}  // namespace kintsugi
