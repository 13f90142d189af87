#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Text from files (names, messages, values of configurations) may be hostile. Each of these shows
// it as it is: it can neither leave its cell nor be taken for markup or for a formula.

// A cell of a Markdown table, or text in a line.
std::string markdown_text(std::string_view text);

// Text of a page, or a value in quotes.
std::string html_text(std::string_view text);

// A cell of a CSV file that is text. A leading = + - or @, which spreadsheets take for the
// beginning of a formula, gets an apostrophe before it.
std::string csv_text(std::string_view text);

// A column has a title for people, a key for programs, or both, and shows its numbers in one way.
struct Column {
  using Show = std::function<std::string(double)>;

  std::string title = {};  // of text, Markdown and CSV
  std::string key = {};    // of JSON; empty: not in it
  bool shown = true;       // false: only in JSON
  bool numbers = false;    // aligned to the right
  bool optional = false;   // JSON has no key where the value is missing; otherwise null
  Show show = {};          // of numbers; empty: as they are

  static Column text(std::string title, std::string key = "");
  static Column number(std::string title, std::string key, Show show);
  // `pattern` is one of fmt, such as "{:.3f}"; empty: as they are.
  static Column number(std::string title, std::string key = "", const char* pattern = "");
  static Column percent(std::string title, std::string key = "", int digits = 1);  // 0.25: 25.0 %
  static Column bytes(std::string title, std::string key = "");
  static Column duration(std::string title, std::string key = "");  // of seconds
  static Column hidden(std::string key);                            // only in JSON
};

// A value as programs read it; null: missing. Where `text` is given, people read that instead.
struct Cell {
  nlohmann::ordered_json value = nullptr;
  std::optional<std::string> text = {};

  template <class Value>
  requires std::constructible_from<nlohmann::ordered_json, const Value&> Cell(const Value& value)
      : value(value) {}
  template <class Value>
  Cell(const std::optional<Value>& value) {
    if (value) this->value = *value;
  }
  template <class Value>
  Cell(const Value& value, std::string text) : Cell(value) {
    this->text = std::move(text);
  }
  static Cell missing() { return Cell(nullptr); }
  // Text, missing if it is empty.
  static Cell or_missing(const std::string& text) { return text.empty() ? missing() : Cell(text); }
};

// Rows that people read as text, Markdown, CSV or HTML and programs as JSON or CSV.
class Table {
 public:
  // `missing` is shown for a missing value; CSV has nothing.
  explicit Table(std::vector<Column> columns, std::string missing = "-")
      : columns_(std::move(columns)), missing_(std::move(missing)) {}

  void add(std::vector<Cell> cells);  // one for each column
  bool empty() const { return rows_.empty(); }
  std::size_t rows() const { return rows_.size(); }

  // Columns as wide as their widest cell, two spaces apart, below their titles if there are any.
  struct TextOptions {
    std::size_t indent = 0;          // spaces
    std::size_t most_rows = 100000;  // "12 more" says how many are left out
  };
  std::string text(const TextOptions& options) const;
  std::string text() const { return text({}); }
  std::string markdown() const;
  std::string csv() const;
  std::string html() const;             // a <table>
  nlohmann::ordered_json json() const;  // a list of objects

 private:
  std::string shown(const Cell& cell, const Column& column) const;

  std::vector<Column> columns_;
  std::string missing_;
  std::vector<std::vector<Cell>> rows_;
};

// Indented JSON as commands print it. Bytes that are no UTF-8 are replaced.
std::string json_lines(const nlohmann::ordered_json& json);

}  // namespace kintsugi
