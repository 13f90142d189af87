#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// The length of the longest well-formed UTF-8 prefix (no surrogates, no overlong forms), in bytes.
std::size_t valid_utf8_prefix(std::string_view text);

// The length of the first character; 0 if it is not well-formed.
std::size_t utf8_character_length(std::string_view text);

// The same of the last character.
std::size_t utf8_last_character_length(std::string_view text);

// The character at `position` of well-formed text.
inline char32_t utf8_decode(std::string_view text, std::size_t position, std::size_t& length) {
  const auto at = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[position + i]));
  };
  const char32_t first = at(0);
  if (first < 0x80) return length = 1, first;
  if (first < 0xE0) return length = 2, (first & 0x1F) << 6 | (at(1) & 0x3F);
  if (first < 0xF0) return length = 3, (first & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
  length = 4;
  return (first & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
}

void utf8_append(std::string& text, char32_t character);

// Replaces invalid UTF-8 by U+FFFD, one for each maximal prefix of a character, as Unicode
// recommends.
std::string replace_invalid_utf8(std::string_view bytes);

// The Unicode properties Cased (of characters that are not Case_Ignorable) and Case_Ignorable.
bool is_cased(char32_t c);
bool is_case_ignorable(char32_t c);

// Whether a capital sigma ends a word, so that in lower case it is a final one: behind a cased
// character and not before one. `before` and `after` return the next character in their direction,
// 0 at the end of the text.
template <class Before, class After>
bool is_final_sigma(Before&& before, After&& after) {
  const auto meets_cased = [](auto& next) {
    char32_t c = next();
    while (is_case_ignorable(c)) c = next();
    return is_cased(c);
  };
  return meets_cased(before) && !meets_cased(after);
}

// str.lower() of Python, with the final sigma. Of a text: valid UTF-8.
std::string lower_text(std::u32string_view characters);
std::string lower_text(std::string_view text);

// The character classes that the regular expressions of pre-tokenizers use.
class UnicodeClasses {
 public:
  enum : std::uint8_t { Letter = 1, Number = 2, Space = 4, Word = 8 };

  static const UnicodeClasses& get();  // initialized on first use
  std::uint8_t of(char32_t c) const { return c < 0x110000 ? pages_[page_[c >> 8]][c & 0xFF] : 0; }

 private:
  UnicodeClasses();
  std::array<std::uint16_t, 0x1100> page_;
  std::vector<std::array<std::uint8_t, 256>> pages_;  // without duplicates
};

}  // namespace kintsugi
