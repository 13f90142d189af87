#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Text as near-duplicates are compared: in lower case, numbers as 0, punctuation as spaces, without
// accents (NFD without nonspacing marks), words separated by one space.
struct DedupText {
  std::string text;
  std::vector<std::uint32_t> words;  // where they begin

  // `count` words from `first` on, as they are in the text.
  std::string_view slice(std::size_t first, std::size_t count) const {
    const std::size_t next = first + count;
    const std::size_t end = next < words.size() ? words[next] - 1 : text.size();
    return std::string_view(text).substr(words[first], end - words[first]);
  }
};

// `text` is well-formed UTF-8 and at most 1 GiB.
void make_dedup_text(std::string_view text, DedupText& result);

}  // namespace kintsugi
