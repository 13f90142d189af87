#include "eval/text.h"

#include <utf8proc.h>

#include <string_view>

#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

void append_upper(std::string& text, char32_t c) {
  const auto simple = [](utf8proc_int32_t from) {
    return static_cast<char32_t>(utf8proc_toupper(from));
  };
  const auto number = static_cast<utf8proc_int32_t>(c);
  // A character that becomes several: its folded form in upper case.
  utf8proc_int32_t folded[8];
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(number, folded, 8, UTF8PROC_CASEFOLD, &boundary);
  if (count < 2 || count > 8 || utf8proc_category(number) == UTF8PROC_CATEGORY_LU)
    return utf8_append(text, simple(number));
  for (utf8proc_ssize_t i = 0; i < count; ++i) utf8_append(text, simple(folded[i]));
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t position) {
  if (utf8_character_length(text.substr(position)) == 0) return {0xFFFD, 1};
  CodePoint point{};
  point.value = utf8_decode(text, position, point.bytes);
  return point;
}

std::vector<char32_t> code_points_of(std::string_view text) {
  std::vector<char32_t> points;
  points.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    points.push_back(point.value);
    at += point.bytes;
  }
  return points;
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += code_point_at(text, at).bytes;
  return count;
}

bool is_python_space(char32_t c) {
  return (c >= 0x1C && c <= 0x1F) || (UnicodeClasses::get().of(c) & UnicodeClasses::Space) != 0;
}

bool begins_with_space(std::string_view text) {
  return !text.empty() && is_python_space(code_point_at(text, 0).value);
}

bool ends_with_space(std::string_view text) { return strip_right(text).size() < text.size(); }

std::string_view strip_right(std::string_view text) {
  std::size_t end = 0;  // after the last character that is not white space
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.bytes;
    if (!is_python_space(point.value)) end = at;
  }
  return text.substr(0, end);
}

std::string_view strip(std::string_view text) {
  text = strip_right(text);
  while (begins_with_space(text)) text.remove_prefix(code_point_at(text, 0).bytes);
  return text;
}

std::vector<std::string_view> split_at_spaces(std::string_view text) {
  std::vector<std::string_view> words;
  std::size_t begin = 0;
  const auto add = [&](std::size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (is_python_space(point.value)) {
      add(at);
      begin = at + point.bytes;
    }
    at += point.bytes;
  }
  add(text.size());
  return words;
}

std::size_t count_words(std::string_view text) {
  std::size_t words = 1;
  bool in_space = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const bool space = is_python_space(point.value);
    if (space && !in_space) ++words;
    in_space = space;
    at += point.bytes;
  }
  return words;
}

std::string lower(std::string_view text) {
  const std::vector<char32_t> points = code_points_of(text);
  return lower_text(std::u32string_view(points.data(), points.size()));
}

std::string upper(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char32_t c : code_points_of(text)) append_upper(result, c);
  return result;
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

}  // namespace kintsugi
