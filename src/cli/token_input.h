#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// "12, 7 9" -> {12, 7, 9}
std::vector<std::int32_t> parse_token_ids(std::string_view text);

// The tokenizer of a model directory; UserError if it has none.
std::unique_ptr<Tokenizer> load_model_tokenizer(const std::filesystem::path& directory);

// Makes streamed text safe for a terminal: printable (core/log.h), so that a model cannot send
// control sequences. An incomplete UTF-8 character is held back until its last byte is added.
class TerminalText {
 public:
  std::string add(const std::string& text);
  std::string rest();  // what is still held back, at the end

 private:
  std::string held_;
};

}  // namespace kintsugi
