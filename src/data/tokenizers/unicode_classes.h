#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace kintsugi {

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
