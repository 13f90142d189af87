#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "serve/text_output.h"

namespace kintsugi {

// Counts the characters (code points) of a text that arrives in pieces, as clients see it: bytes
// that are no UTF-8 have become U+FFFD, one for each maximal beginning of a character.
class CharacterCount {
 public:
  void add(std::string_view bytes);
  // The index of the character that the first of these bytes belongs to, if they are added next.
  std::int64_t index_of(std::string_view bytes) const;

 private:
  std::int64_t whole_ = 0;
  std::string begun_;  // bytes of a character that more bytes may complete
};

// The text of each token of a sequence, and where it begins.
class TokenTexts {
 public:
  struct Entry {
    std::string bytes;
    std::int64_t offset = 0;  // in characters (code points): that of its first byte
  };

  // `before`: the tokens in front, which determine how some tokenizers write the first one.
  explicit TokenTexts(const Tokenizer* tokenizer, std::span<const std::int32_t> before = {});

  Entry add(std::int32_t id);
  std::string alternative(std::int32_t id) const;  // the bytes of another token at this position

 private:
  TextOutput output_;
  CharacterCount characters_;
};

// Text for JSON: as it is if it is UTF-8, otherwise bytes:\xe2\x82 so that nothing is lost.
std::string json_text(std::string_view bytes);

std::int64_t count_characters(std::string_view text);

}  // namespace kintsugi
