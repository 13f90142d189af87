#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Text from runs (names, messages, values of configurations) may be hostile. Each of these shows it
// as it is: it can neither leave its cell nor be taken for markup or for a formula.

// A cell of a Markdown table, or text in a line.
std::string markdown_text(std::string_view text);

// A cell of a CSV file that is text. A leading = + - or @, which spreadsheets take for the
// beginning of a formula, gets an apostrophe before it.
std::string csv_text(std::string_view text);

// A table of cells that are Markdown already. `numbers`: columns that are aligned to the right.
struct MarkdownTable {
  std::vector<std::string> header = {};
  std::vector<bool> numbers = {};
  std::vector<std::vector<std::string>> rows = {};
};
std::string to_markdown(const MarkdownTable& table);

}  // namespace kintsugi
