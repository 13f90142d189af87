#include "data/tokenizers/unicode.h"

#include <utf8proc.h>

#include <cstring>
#include <map>

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

std::uint8_t classes_of(std::int32_t c) {
  // The Unicode property White_Space.
  const bool space = (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
                     (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
                     c == 0x205F || c == 0x3000;
  const std::uint8_t first = space ? UnicodeClasses::Space : 0;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return UnicodeClasses::Letter | UnicodeClasses::Word;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return UnicodeClasses::Number | UnicodeClasses::Word;
    case UTF8PROC_CATEGORY_NO:
      return UnicodeClasses::Number;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
      return UnicodeClasses::Word;
    default:
      if (c == 0x200C || c == 0x200D) return UnicodeClasses::Word;
      return first;
  }
}

}  // namespace

std::size_t utf8_character_length(std::string_view text) {
  std::size_t good;
  return scan_character(text, good) ? good : 0;
}

std::size_t utf8_last_character_length(std::string_view text) {
  std::size_t length = 1;
  while (length < 4 && length < text.size() &&
         (static_cast<unsigned char>(text[text.size() - length]) & 0xC0) == 0x80)
    ++length;
  const std::size_t begin = text.size() - std::min(length, text.size());
  return utf8_character_length(text.substr(begin)) == length ? length : 0;
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

bool is_cased(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return c == 0xAA || c == 0xBA || in(0x2160, 0x217F) || in(0x24B6, 0x24E9) ||
             in(0x1F130, 0x1F149) || in(0x1F150, 0x1F169) || in(0x1F170, 0x1F189);
  }
}

bool is_case_ignorable(char32_t c) {
  constexpr std::u32string_view kInsideWords =
      U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return kInsideWords.find(c) != std::u32string_view::npos;
  }
}

std::string lower_text(std::u32string_view text) {
  constexpr char32_t kCapitalSigma = 0x3A3, kSigma = 0x3C3, kFinalSigma = 0x3C2;
  constexpr char32_t kDottedCapitalI = 0x130;  // becomes an i and a combining dot
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c < 0x80) {
      result += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    } else if (c == kCapitalSigma) {
      std::size_t before = i, after = i;
      const bool is_final =
          is_final_sigma([&] { return before == 0 ? U'\0' : text[--before]; },
                         [&] { return ++after < text.size() ? text[after] : U'\0'; });
      utf8_append(result, is_final ? kFinalSigma : kSigma);
    } else if (c == kDottedCapitalI) {
      result += "i\u0307";
    } else {
      utf8_append(result,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return result;
}

std::string lower_text(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (std::size_t i = 0, length = 0; i < text.size(); i += length)
    characters += utf8_decode(text, i, length);
  return lower_text(characters);
}

const UnicodeClasses& UnicodeClasses::get() {
  static const UnicodeClasses classes;
  return classes;
}

UnicodeClasses::UnicodeClasses() {
  std::map<std::array<std::uint8_t, 256>, std::uint16_t> known;
  for (std::size_t page = 0; page < page_.size(); ++page) {
    std::array<std::uint8_t, 256> content;
    for (std::size_t i = 0; i < 256; ++i)
      content[i] = classes_of(static_cast<std::int32_t>(page << 8 | i));
    const auto [entry, fresh] = known.emplace(content, static_cast<std::uint16_t>(pages_.size()));
    if (fresh) pages_.push_back(content);
    page_[page] = entry->second;
  }
}

}  // namespace kintsugi
