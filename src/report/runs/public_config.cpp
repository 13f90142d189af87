#include "report/runs/public_config.h"

#include <algorithm>
#include <sstream>

#include "report/runs/config_differences.h"

namespace kintsugi {
namespace {

// "    command: …": 4, "command", "…".
struct KeyLine {
  std::size_t indent = 0;
  std::string key = {}, value = {};
};

std::size_t indent_of(const std::string& line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

KeyLine key_line(const std::string& line) {
  KeyLine parts{.indent = indent_of(line)};
  const std::size_t colon = std::min(line.find(':', parts.indent), line.size());
  parts.key = line.substr(parts.indent, colon - parts.indent);
  const std::size_t value = line.find_first_not_of(" \r", colon + 1);
  if (colon < line.size() && value != std::string::npos) parts.value = line.substr(value);
  return parts;
}

// notify itself has a value if it is written as {command: …}.
bool is_hidden_line(const KeyLine& line) {
  if (line.key != "notify" && line.key != "command" && line.key != "webhook") return false;
  return !line.value.empty() && line.value != "null";
}

std::string without_hidden_lines(const std::string& yaml) {
  std::string text;
  bool hiding = false;  // the value of a key with this indentation
  std::size_t indent = 0;
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    const KeyLine parts = key_line(line);
    const bool continues = hiding && (parts.indent > indent || parts.indent == line.size());
    if (continues) continue;
    hiding = is_hidden_line(parts);
    if (hiding) {
      indent = parts.indent;
      line = std::string(parts.indent, ' ') + parts.key + ": " + kHiddenValue;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace

bool is_hidden_key(std::string_view key) {
  return key == "run.notify" || key == "run.notify.command" || key == "run.notify.webhook";
}

std::string public_config(const std::string& yaml) {
  const std::string text = without_hidden_lines(yaml);
  // Runs write one key per line. A file that was written otherwise is not shown rather than shown
  // with a secret.
  const ConfigValues values = all_config_values(text);
  const bool is_public = std::all_of(values.begin(), values.end(), [](const auto& entry) {
    const auto& [key, value] = entry;
    return !is_hidden_key(key) || value == kHiddenValue || value == "null";
  });
  return is_public ? text : "# not shown: run.notify is not written as one key per line\n";
}

}  // namespace kintsugi
