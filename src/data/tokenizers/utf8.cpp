#include "data/tokenizers/utf8.h"

#include <cstring>

namespace kintsugi {
namespace {

// Checks the first character by table 3-7 of the Unicode standard. Sets `good` to the number of
// valid bytes before the first invalid one; returns whether the character is complete.
bool scan_character(std::string_view text, std::size_t& good) {
  const auto in = [&](std::size_t i, unsigned low, unsigned high) {
    if (i >= text.size()) return false;
    const unsigned byte = static_cast<unsigned char>(text[i]);
    return byte >= low && byte <= high;
  };
  good = 0;
  if (text.empty()) return false;
  const unsigned first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return good = 1, true;
  if (first < 0xC2 || first > 0xF4) return false;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  good = 1;
  if (!in(1, low, high)) return false;
  for (good = 2; good < length; ++good)
    if (!in(good, 0x80, 0xBF)) return false;
  return true;
}

}  // namespace

std::size_t utf8_character_length(std::string_view text) {
  std::size_t good;
  return scan_character(text, good) ? good : 0;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size()) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080ull) == 0) {
        i += 8;
        continue;
      }
    }
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const std::size_t length = utf8_character_length(text.substr(i));
    if (length == 0) break;
    i += length;
  }
  return i;
}

void utf8_append(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    std::size_t good;
    scan_character(bytes, good);
    text += "\xEF\xBF\xBD";
    bytes.remove_prefix(good == 0 ? 1 : good);
  }
  return text;
}

}  // namespace kintsugi
