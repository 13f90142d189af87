#include "data/tokenizers/unicode_classes.h"

#include <utf8proc.h>

#include <map>

namespace kintsugi {
namespace {

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
