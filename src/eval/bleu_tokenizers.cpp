#include <utf8proc.h>

#include <array>
#include <utility>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "eval/text.h"
#include "eval/translation_scores.h"

namespace kintsugi {
namespace {

constexpr std::array<std::string_view, 4> kBleuTokenizers = {"13a", "intl", "char", "none"};

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(from, at);
    result += text.substr(at, found - at);
    if (found == std::string_view::npos) return result;
    result += to;
    at = found + from.size();
  }
}

// The steps of 13a look at ASCII characters only, so they work on bytes.
bool ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool point_or_comma(char c) { return c == '.' || c == ','; }

// Spaces around ASCII punctuation and symbols other than ' , - .
std::string separate_symbols(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool symbol = (c >= '{' && c <= '~') || (c >= '[' && c <= '`') ||
                        (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
                        (c >= ':' && c <= '@') || c == '/';
    if (symbol)
      result.append(1, ' ').append(1, c).append(1, ' ');
    else
      result += c;
  }
  return result;
}

// Rewrites pairs of neighbours from left to right. A pair that matched is not looked at again.
template <class Matches>
std::string rewrite_pairs(std::string_view text, Matches matches, std::string_view before,
                          std::string_view between, std::string_view after) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i + 1 < text.size() && matches(text[i], text[i + 1])) {
      result.append(before).append(1, text[i]).append(between).append(1, text[i + 1]).append(after);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string separate_13a(std::string_view text) {
  std::string line = replaced(replaced(replaced(text, "<skipped>", ""), "-\n", ""), "\n", " ");
  for (const auto& [entity, character] : {std::pair{"&quot;", "\""}, std::pair{"&amp;", "&"},
                                          std::pair{"&lt;", "<"}, std::pair{"&gt;", ">"}})
    line = replaced(line, entity, character);
  line = separate_symbols(" " + line + " ");
  line = rewrite_pairs(
      line, [](char a, char b) { return !ascii_digit(a) && point_or_comma(b); }, "", " ", " ");
  line = rewrite_pairs(
      line, [](char a, char b) { return point_or_comma(a) && !ascii_digit(b); }, " ", " ", "");
  return rewrite_pairs(
      line, [](char a, char b) { return ascii_digit(a) && b == '-'; }, "", " ", " ");
}

// The first letter of the category of Unicode: N of numbers, P of punctuation, S of symbols.
char kind_of(char32_t c) { return utf8proc_category_string(static_cast<utf8proc_int32_t>(c))[0]; }

// Separates punctuation that does not stand between numbers, then symbols.
std::string separate_intl(std::string_view text) {
  using Points = std::vector<char32_t>;
  const auto rewrite = [](const Points& in, auto matches, bool space_in_front) {
    Points out;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (i + 1 == in.size() || !matches(kind_of(in[i]), kind_of(in[i + 1]))) {
        out.push_back(in[i]);
        continue;
      }
      if (space_in_front) out.push_back(U' ');
      out.insert(out.end(), {in[i], U' ', in[i + 1]});
      if (!space_in_front) out.push_back(U' ');
      ++i;
    }
    return out;
  };
  Points points = code_points_of(text);
  points = rewrite(
      points, [](char a, char b) { return a != 'N' && b == 'P'; }, false);
  points = rewrite(
      points, [](char a, char b) { return a == 'P' && b != 'N'; }, true);
  std::string line;
  for (const char32_t c : points) {
    const char* const space = kind_of(c) == 'S' ? " " : "";
    line += space;
    utf8_append(line, c);
    line += space;
  }
  return line;
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> tokens;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (!is_python_space(point.value)) tokens.emplace_back(text.substr(at, point.bytes));
    at += point.bytes;
  }
  return tokens;
}

}  // namespace

BleuTokenizer parse_bleu_tokenizer(std::string_view name) {
  for (std::size_t i = 0; i < kBleuTokenizers.size(); ++i)
    if (kBleuTokenizers[i] == name) return static_cast<BleuTokenizer>(i);
  user_error("unknown tokenization '{}': give 13a, intl, char or none", name);
}

std::string_view to_string(BleuTokenizer tokenizer) {
  return kBleuTokenizers.at(static_cast<std::size_t>(tokenizer));
}

std::vector<std::string> bleu_tokens(std::string_view text, BleuTokenizer tokenizer) {
  if (tokenizer == BleuTokenizer::Char) return characters(text);
  std::string line;
  if (tokenizer == BleuTokenizer::V13a) line = separate_13a(text);
  if (tokenizer == BleuTokenizer::Intl) line = separate_intl(text);
  if (tokenizer == BleuTokenizer::None) line = text;
  std::vector<std::string> tokens;
  for (const std::string_view word : split_at_spaces(line)) tokens.emplace_back(word);
  return tokens;
}

}  // namespace kintsugi
