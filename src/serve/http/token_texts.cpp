#include "serve/http/token_texts.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/tokenizers/utf8.h"

namespace kintsugi {

namespace {

// Whether more bytes can complete these, of which at least one, to a character.
bool begins_character(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  const std::size_t length = first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (length == 1 || first > 0xF4 || bytes.size() >= length) return false;
  if (bytes.size() == 1) return true;
  // No overlong forms, no surrogates, nothing above U+10FFFF.
  const unsigned char low = first == 0xE0   ? 0xA0
                            : first == 0xF0 ? 0x90
                                            : 0x80,
                      high = first == 0xED   ? 0x9F
                             : first == 0xF4 ? 0x8F
                                             : 0xBF;
  if (at(1) < low || at(1) > high) return false;
  return bytes.size() == 2 || (at(2) & 0xC0) == 0x80;
}

}  // namespace

void CharacterCount::add(std::string_view bytes) {
  for (const char c : bytes) {
    const std::string longer = begun_ + c;
    if (begins_character(longer)) {
      begun_ = longer;
      continue;
    }
    const bool completes = utf8_character_length(longer) == longer.size();
    if (!completes && !begun_.empty()) ++whole_;  // what was begun stays incomplete
    const std::string alone(1, c);
    const bool begins = !completes && begins_character(alone);
    begun_ = begins ? alone : "";
    if (!begins) ++whole_;
  }
}

std::int64_t CharacterCount::index_of(std::string_view bytes) const {
  if (begun_.empty() || bytes.empty()) return whole_;
  const std::string longer = begun_ + bytes.front();
  const bool continues = begins_character(longer) || utf8_character_length(longer) == longer.size();
  return continues ? whole_ : whole_ + 1;
}

TokenTexts::TokenTexts(const Tokenizer* tokenizer, std::span<const std::int32_t> before)
    : output_(tokenizer, before) {}

TokenTexts::Entry TokenTexts::add(std::int32_t id) {
  Entry entry{output_.add(id)};
  entry.offset = characters_.index_of(entry.bytes);
  characters_.add(entry.bytes);
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
  const std::string shown = replace_invalid_utf8(text);
  return std::count_if(shown.begin(), shown.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace kintsugi
