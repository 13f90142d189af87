#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/curation/personal_data.h"

// What the scanners of personal data share.
namespace kintsugi::personal {

enum : std::uint8_t {
  kDigit = 1,
  kUpper = 2,
  kLower = 4,
  kHex = 8,
  kStop = 16,
  kLocal = 32,
  kNumber = 64
};

constexpr std::array<std::uint8_t, 256> make_classes() {
  std::array<std::uint8_t, 256> classes{};
  for (unsigned c = '0'; c <= '9'; ++c) classes[c] = kDigit | kHex | kStop | kLocal;
  for (unsigned i = 0; i < 26; ++i) {
    classes['A' + i] = static_cast<std::uint8_t>(kUpper | kLocal | (i < 6 ? kHex : 0));
    classes['a' + i] = static_cast<std::uint8_t>(kLower | kLocal | (i < 6 ? kHex : 0));
  }
  for (const unsigned char c : {'.', '_', '%', '+', '-'}) classes[c] = kLocal;
  classes['@'] = kStop;
  // What may be between the digits of a number, with all that is not ASCII.
  for (const unsigned char c : std::string_view(" .-/()+ABCDEFUVWXY")) classes[c] |= kNumber;
  for (unsigned c = 0x80; c < 0x100; ++c) classes[c] |= kNumber;
  return classes;
}
inline constexpr std::array<std::uint8_t, 256> kClasses = make_classes();

inline bool is(char c, unsigned classes) {
  return (kClasses[static_cast<unsigned char>(c)] & classes) != 0;
}
inline bool is_alphanumeric(char c) { return is(c, kDigit | kUpper | kLower); }
inline bool is_word(char c) { return is_alphanumeric(c) || c == '_'; }
inline bool is_one_of(char c, std::string_view set) {
  return set.find(c) != std::string_view::npos;
}
// Of a character in a word: bytes of other letters count, too.
inline bool is_letter(char c) {
  return is(c, kUpper | kLower) || static_cast<unsigned char>(c) >= 0x80;
}
inline char lower(char c) { return is(c, kUpper) ? static_cast<char>(c + 32) : c; }

// What the scanners read: a text, of which every byte outside is 0.
struct View {
  std::string_view text;
  char operator[](std::size_t i) const { return i < text.size() ? text[i] : '\0'; }
  // The byte `back` before i.
  char before(std::size_t i, std::size_t back = 1) const { return i >= back ? text[i - back] : 0; }
  std::size_t size() const { return text.size(); }
};

// The bytes of a separator within a number at i, 0: none. A space (also U+00A0 and U+202F), a dot,
// a hyphen (also U+2011).
inline std::size_t separator(View text, std::size_t i) {
  const char c = text[i];
  if (c == ' ' || c == '.' || c == '-') return 1;
  if (c == '\xC2' && text[i + 1] == '\xA0') return 2;
  if (c == '\xE2' && text[i + 1] == '\x80' && (text[i + 2] == '\xAF' || text[i + 2] == '\x91'))
    return 3;
  return 0;
}

// A number does not begin inside a word, a decimal number, or something with hyphens such as a
// UUID.
inline bool may_begin(View text, std::size_t i) {
  const char c = text.before(i), previous = text.before(i, 2);
  if (is_word(c) || c == '+') return false;
  if (is_one_of(c, ".,/") && is(previous, kDigit)) return false;
  return c != '-' || !is_word(previous);
}

inline bool may_end(View text, std::size_t i) {
  const char c = text[i], next = text[i + 1];
  if (is_word(c)) return false;
  if (is_one_of(c, ".,/") && is(next, kDigit)) return false;
  return c != '-' || !is_word(next);
}

using Match = std::optional<MaskedSpan>;

// What begins at the digit i, of an IBAN at its first check digit. `countries`: those that count;
// empty: all.
Match find_iban(View text, std::size_t i);
Match find_card(View text, std::size_t i);
Match find_national(View text, std::size_t i, const std::vector<std::string>& countries);
Match find_phone(View text, std::size_t i, const std::vector<std::string>& countries);

std::vector<std::string_view> known_countries();  // some twice

}  // namespace kintsugi::personal
