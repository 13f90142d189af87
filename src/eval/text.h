#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Text as Python's str sees it, because lm-evaluation-harness and sacreBLEU define their rules by
// its methods. Text is UTF-8; a byte that belongs to no character counts as one U+FFFD.

struct CodePoint {
  char32_t value;
  std::size_t bytes;
};
CodePoint code_point_at(std::string_view text, std::size_t position);  // position < text.size()
std::vector<char32_t> code_points_of(std::string_view text);
std::size_t count_code_points(std::string_view text);

bool is_python_space(char32_t c);  // str.isspace(): White_Space and U+001C to U+001F
bool begins_with_space(std::string_view text);
bool ends_with_space(std::string_view text);
std::string_view strip_right(std::string_view text);                   // str.rstrip()
std::string_view strip(std::string_view text);                         // str.strip()
std::vector<std::string_view> split_at_spaces(std::string_view text);  // str.split()
// The pieces of a split at runs of white space. Empty ends count; the empty text has one piece.
std::size_t count_words(std::string_view text);

std::string lower(std::string_view text);  // str.lower(), with the final sigma
std::string upper(std::string_view text);  // str.upper(): "ß" becomes "SS"
bool is_ascii_punctuation(char32_t c);     // string.punctuation

}  // namespace kintsugi
