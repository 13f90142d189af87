#include "serve/http/token_texts.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/tokenizers/utf8.h"

namespace kintsugi {

TokenTexts::TokenTexts(const Tokenizer* tokenizer, std::span<const std::int32_t> before)
    : output_(tokenizer, before) {}

TokenTexts::Entry TokenTexts::add(std::int32_t id) {
  Entry entry{output_.add(id), characters_};
  incomplete_ += entry.bytes;
  const std::size_t complete = complete_characters(incomplete_);
  characters_ += count_characters(std::string_view(incomplete_).substr(0, complete));
  incomplete_.erase(0, complete);
  return entry;
}

std::string TokenTexts::alternative(std::int32_t id) const {
  TextOutput copy = output_;
  return copy.add(id);
}

std::string json_text(std::string_view bytes) {
  if (valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace kintsugi
