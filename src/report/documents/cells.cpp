#include "report/documents/cells.h"

#include <algorithm>
#include <cctype>

#include "core/log.h"

namespace kintsugi {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Line ends and tabs are spaces.
std::string in_one_line(std::string_view text) {
  std::string line = printable(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::replace(line.begin(), line.end(), '\t', ' ');
  return line;
}

// Whether the character at `i` could be markup. An underscore inside a word is none, and most names
// have some.
bool is_markup(const std::string& text, std::size_t i) {
  constexpr std::string_view kMarkup = "\\`*[]|~$";
  if (text[i] == '_')
    return i == 0 || i + 1 == text.size() || !is_word(text[i - 1]) || !is_word(text[i + 1]);
  // "http://" and "www." become links.
  if (text[i] == ':') return text.compare(i, 3, "://") == 0;
  if (text[i] == '.') return i >= 3 && text.compare(i - 3, 3, "www") == 0;
  return kMarkup.find(text[i]) != std::string_view::npos;
}

std::string joined(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += " " + cell + " |";
  return line + "\n";
}

}  // namespace

std::string markdown_text(std::string_view text) {
  const std::string line = in_one_line(text);
  std::string result;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '<') {
      result += "&lt;";
    } else if (line[i] == '>') {
      result += "&gt;";
    } else if (line[i] == '&') {
      result += "&amp;";
    } else {
      if (is_markup(line, i)) result += '\\';
      result += line[i];
    }
  }
  return result;
}

std::string csv_text(std::string_view text) {
  std::string line = in_one_line(text);
  const std::size_t first = line.find_first_not_of(' ');
  const bool formula =
      first != std::string::npos && std::string_view("=+-@").find(line[first]) != std::string::npos;
  if (formula) line.insert(0, "'");
  if (!formula && line.find_first_of(",\";") == std::string::npos) return line;
  std::string quoted = "\"";
  for (const char c : line) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string to_markdown(const MarkdownTable& table) {
  std::vector<std::string> rule;
  for (std::size_t i = 0; i < table.header.size(); ++i)
    rule.push_back(i < table.numbers.size() && table.numbers[i] ? "--:" : "---");
  std::string text = joined(table.header) + joined(rule);
  for (const auto& row : table.rows) text += joined(row);
  return text;
}

}  // namespace kintsugi
