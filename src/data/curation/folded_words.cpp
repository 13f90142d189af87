#include "data/curation/folded_words.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>

namespace kintsugi {

const FoldedCharacters& FoldedCharacters::get() {
  static const FoldedCharacters folded;
  return folded;
}

FoldedCharacters::FoldedCharacters() {
  const UnicodeClasses& classes = UnicodeClasses::get();
  std::map<std::array<char32_t, 256>, std::uint16_t> known;
  for (std::size_t page = 0; page < page_.size(); ++page) {
    std::array<char32_t, 256> content;
    for (std::size_t i = 0; i < content.size(); ++i) {
      const auto c = static_cast<char32_t>(page << 8 | i);
      const bool in_word = (classes.of(c) & UnicodeClasses::Word) != 0;
      content[i] =
          in_word ? static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))) : 0;
    }
    const auto [entry, fresh] = known.emplace(content, static_cast<std::uint16_t>(pages_.size()));
    if (fresh) pages_.push_back(content);
    page_[page] = entry->second;
  }
  std::copy_n(pages_[page_[0]].begin(), ascii_.size(), ascii_.begin());
}

}  // namespace kintsugi
