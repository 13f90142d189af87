#include "core/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Line ends and tabs are spaces.
std::string in_one_line(std::string_view text) {
  std::string line = printable(text);
  std::ranges::replace(line, '\n', ' ');
  std::ranges::replace(line, '\t', ' ');
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

// In characters, of which each has one byte that does not continue another.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + text : text + space;
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

std::string html_text(std::string_view text) {
  std::string result;
  for (const char c : in_one_line(text)) switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
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

Column Column::text(std::string title, std::string key) {
  return {.title = std::move(title), .key = std::move(key)};
}
Column Column::number(std::string title, std::string key, Show show) {
  return {
      .title = std::move(title), .key = std::move(key), .numbers = true, .show = std::move(show)};
}
Column Column::number(std::string title, std::string key, const char* pattern) {
  const auto show = [pattern = std::string(pattern)](double value) {
    return fmt::format(fmt::runtime(pattern), value);
  };
  return number(std::move(title), std::move(key), *pattern != '\0' ? Show(show) : Show());
}
Column Column::percent(std::string title, std::string key, int digits) {
  return number(std::move(title), std::move(key),
                [digits](double value) { return fmt::format("{:.{}f} %", 100 * value, digits); });
}
Column Column::bytes(std::string title, std::string key) {
  return number(std::move(title), std::move(key), format_bytes);
}
Column Column::duration(std::string title, std::string key) {
  return number(std::move(title), std::move(key), format_duration);
}
Column Column::hidden(std::string key) { return {.key = std::move(key), .shown = false}; }

void Table::add(std::vector<Cell> cells) {
  KINTSUGI_CHECK(cells.size() == columns_.size(), "{} cells for {} columns", cells.size(),
                 columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::shown(const Cell& cell, const Column& column) const {
  const nlohmann::ordered_json& value = cell.value;
  if (cell.text) return in_one_line(*cell.text);
  if (value.is_null()) return missing_;
  if (value.is_number() && column.show) return column.show(value.get<double>());
  return value.is_string() ? in_one_line(value.get<std::string>()) : value.dump();
}

std::string Table::text(const TextOptions& options) const {
  std::vector<std::vector<std::string>> lines(1);
  bool titled = false;
  for (const Column& column : columns_) {
    lines.front().push_back(column.title);
    titled = titled || (column.shown && !column.title.empty());
  }
  if (!titled) lines.clear();
  for (std::size_t i = 0; i < std::min(rows_.size(), options.most_rows); ++i) {
    lines.emplace_back();
    for (std::size_t k = 0; k < columns_.size(); ++k)
      lines.back().push_back(columns_[k].shown ? shown(rows_[i][k], columns_[k]) : "");
  }
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& line : lines)
    for (std::size_t k = 0; k < line.size(); ++k)
      widths[k] = std::max(widths[k], width_of(line[k]));
  std::string text;
  for (const auto& line : lines) {
    std::string row(options.indent, ' ');
    for (std::size_t k = 0; k < line.size(); ++k)
      if (columns_[k].shown) row += padded(line[k], widths[k], columns_[k].numbers) + "  ";
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  if (rows_.size() > options.most_rows)
    text += fmt::format("{:{}}{} more\n", "", options.indent, rows_.size() - options.most_rows);
  return text;
}

std::string Table::markdown() const {
  std::string text = "|", rule = "|";
  for (const Column& column : columns_) {
    if (!column.shown) continue;
    text += fmt::format(" {} |", markdown_text(column.title));
    rule += column.numbers ? " --: |" : " --- |";
  }
  text += "\n" + rule + "\n";
  for (const auto& row : rows_) {
    text += "|";
    for (std::size_t k = 0; k < row.size(); ++k)
      if (columns_[k].shown)
        text += fmt::format(" {} |", markdown_text(shown(row[k], columns_[k])));
    text += "\n";
  }
  return text;
}

std::string Table::csv() const {
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t k = 0; k < columns_.size(); ++k)
      if (columns_[k].shown) line += "," + cell_of(k);
    text += line.substr(std::min<std::size_t>(1, line.size())) + "\n";
  };
  add_line([&](std::size_t k) { return csv_text(columns_[k].title); });
  for (const auto& row : rows_)
    add_line([&](std::size_t k) {
      if (row[k].value.is_null() && !row[k].text) return std::string();
      const std::string cell = shown(row[k], columns_[k]);
      return row[k].value.is_number() ? cell : csv_text(cell);  // "-1" is no formula
    });
  return text;
}

std::string Table::html() const {
  const auto add_row = [&](std::string& text, const char* element, const auto& cell_of) {
    text += "<tr>";
    for (std::size_t k = 0; k < columns_.size(); ++k)
      if (columns_[k].shown)
        text += fmt::format("<{}{}>{}</{}>", element, columns_[k].numbers ? " class=number" : "",
                            html_text(cell_of(k)), element);
    text += "</tr>\n";
  };
  std::string text = "<table>\n";
  add_row(text, "th", [&](std::size_t k) { return columns_[k].title; });
  for (const auto& row : rows_)
    add_row(text, "td", [&](std::size_t k) { return shown(row[k], columns_[k]); });
  return text + "</table>\n";
}

nlohmann::ordered_json Table::json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (std::size_t k = 0; k < row.size(); ++k)
      if (!columns_[k].key.empty() && !(columns_[k].optional && row[k].value.is_null()))
        object[columns_[k].key] = row[k].value;
    list.push_back(std::move(object));
  }
  return list;
}

std::string json_lines(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace kintsugi
