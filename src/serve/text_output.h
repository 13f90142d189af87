#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// The length of `text` without an incomplete UTF-8 character at its end.
std::size_t complete_characters(std::string_view text);

// Decodes tokens one by one into text. Some tokenizers decode a token differently at the beginning
// of a text, so the last few tokens are decoded with it.
class TextOutput {
 public:
  // Without a tokenizer, the text of a token is its id and a space.
  TextOutput(const Tokenizer* tokenizer, std::span<const std::int32_t> prompt);
  std::string add(std::int32_t token);  // the text it appends; empty for ids without a token

 private:
  const Tokenizer* tokenizer_;
  std::vector<std::int32_t> recent_;
};

// Ends a streamed text before the first stop string: the one that is complete first, and of several
// that end at the same byte the longest. How the text is divided into calls does not matter.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings);  // UserError if one is empty or not UTF-8

  // Adds text. Returns what can be shown: whole UTF-8 characters, without a possible beginning of a
  // stop string. After a stop string it returns nothing more.
  std::string add(std::string_view text);
  bool found() const { return found_; }
  std::string rest();  // what is still held back, at the end of the text

 private:
  std::size_t held_beginning() const;  // bytes at the end that may begin a stop string

  std::vector<std::string> strings_;  // the longest first
  std::string held_;
  bool found_ = false;
};

}  // namespace kintsugi
