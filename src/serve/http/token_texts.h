#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "serve/text_output.h"

namespace kintsugi {

// The text of each token of a sequence, and where it begins.
class TokenTexts {
 public:
  struct Entry {
    std::string bytes;
    std::int64_t offset = 0;  // in characters (code points), of the first one that it completes
  };

  // `before`: the tokens in front, which determine how some tokenizers write the first one.
  explicit TokenTexts(const Tokenizer* tokenizer, std::span<const std::int32_t> before = {});

  Entry add(std::int32_t id);
  std::string alternative(std::int32_t id) const;  // the bytes of another token at this position

 private:
  TextOutput output_;
  std::string incomplete_;  // bytes of a character
  std::int64_t characters_ = 0;
};

// Text for JSON: as it is if it is UTF-8, otherwise bytes:\xe2\x82 so that nothing is lost.
std::string json_text(std::string_view bytes);

std::int64_t count_characters(std::string_view text);

}  // namespace kintsugi
