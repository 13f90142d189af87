#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// "12, 7 9" -> {12, 7, 9}
std::vector<std::int32_t> parse_token_ids(std::string_view text);

// The tokenizer of a model directory; UserError if it has none.
std::unique_ptr<Tokenizer> load_model_tokenizer(const std::filesystem::path& directory);

// Text as it grows by tokens. A tokenizer may write a token differently at the beginning of a text,
// so a few tokens before it are decoded along.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt);
  std::string add(std::int32_t token);  // what it appends; nothing for ids that are no tokens

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> recent_;
};

// Text that comes in pieces, for a terminal: printable (core/log.h), so that a model cannot send
// it commands. A character that is not complete yet waits for the next piece.
class TerminalText {
 public:
  std::string add(const std::string& piece);
  std::string rest();  // at the end

 private:
  std::string held_;
};

}  // namespace kintsugi
