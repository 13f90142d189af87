#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/unicode.h"

namespace kintsugi {

// Words for comparison: letters, marks and digits in lower case. Spaces and punctuation make no
// difference. All texts are valid UTF-8.

// Characters of words in lower case; 0 for all that is between words.
class FoldedCharacters {
 public:
  static const FoldedCharacters& get();  // initialized on first use
  char32_t of(char32_t c) const { return c < 0x110000 ? pages_[page_[c >> 8]][c & 0xFF] : 0; }
  char32_t at(std::string_view text, std::size_t position, std::size_t& length) const {
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte < 0x80) return length = 1, ascii_[byte];
    return of(utf8_decode(text, position, length));
  }

 private:
  FoldedCharacters();
  std::array<char32_t, 128> ascii_;
  std::array<std::uint16_t, 0x1100> page_;
  std::vector<std::array<char32_t, 256>> pages_;  // without duplicates
};

// Calls use(word) for each word.
template <class Use>
void for_each_word(std::string_view text, Use&& use) {
  const FoldedCharacters& folded = FoldedCharacters::get();
  std::string word;
  for (std::size_t i = 0, length = 0; i < text.size(); i += length) {
    const char32_t c = folded.at(text, i, length);
    if (c != 0) {
      utf8_append(word, c);
    } else if (!word.empty()) {
      use(word);
      word.clear();
    }
  }
  if (!word.empty()) use(word);
}

// Calls use(hash) for each word.
template <class Use>
void for_each_word_hash(std::string_view text, Use&& use) {
  constexpr std::uint64_t kFactor = 0x9FB21C651E98DF25;
  const FoldedCharacters& folded = FoldedCharacters::get();
  std::uint64_t sum = 0;
  const auto end_word = [&] {
    const std::uint64_t mixed = (sum ^ sum >> 32) * kFactor;
    use(mixed ^ mixed >> 29);
    sum = 0;
  };
  for (std::size_t i = 0, length = 0; i < text.size(); i += length) {
    const char32_t c = folded.at(text, i, length);
    if (c != 0) [[likely]]
      sum = (sum + c) * kFactor;  // never 0 by chance that matters: an odd factor
    else if (sum != 0)
      end_word();
  }
  if (sum != 0) end_word();
}

}  // namespace kintsugi
