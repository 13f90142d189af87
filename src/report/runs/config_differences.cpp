#include "report/runs/config_differences.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "core/yaml_document.h"

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

constexpr std::size_t kMostValues = 20'000;

bool is_plain_list(const YAML::Node& node) {
  return node.IsSequence() && std::all_of(node.begin(), node.end(), [](const YAML::Node& item) {
           return item.IsScalar() || item.IsNull();
         });
}

std::string scalar_text(const YAML::Node& node) { return node.IsNull() ? "null" : node.Scalar(); }

void flatten(const YAML::Node& node, const std::string& key, ConfigValues& values) {
  if (values.size() >= kMostValues) return;
  if (node.IsMap()) {
    for (const auto& member : node) {
      const std::string name = member.first.Scalar();
      flatten(member.second, key.empty() ? name : key + "." + name, values);
    }
  } else if (is_plain_list(node)) {
    std::string text;
    for (const YAML::Node& item : node) text += (text.empty() ? "" : ", ") + scalar_text(item);
    values[key] = "[" + text + "]";
  } else if (node.IsSequence()) {
    for (std::size_t i = 0; i < node.size(); ++i)
      flatten(node[i], fmt::format("{}[{}]", key, i), values);
  } else {
    values[key] = scalar_text(node);
  }
}

bool is_hidden_key(std::string_view key) {
  return key == "run.notify" || key == "run.notify.command" || key == "run.notify.webhook";
}

// With the secrets.
ConfigValues all_config_values(const std::string& yaml, std::string* problem = nullptr) {
  ConfigValues values;
  try {
    const YAML::Node root = load_yaml(yaml, "config.yaml");
    if (root.IsMap()) flatten(root, "", values);
    if (problem != nullptr && !root.IsMap() && !root.IsNull())
      *problem = "config.yaml is not a map of keys";
  } catch (const UserError& error) {  // of another program, or half-written
    if (problem != nullptr) *problem = printable(error.what());
  }
  return values;
}

}  // namespace

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

ConfigValues config_values(const std::string& yaml, std::string* problem) {
  ConfigValues values = all_config_values(yaml, problem);
  for (auto& [key, value] : values)
    if (is_hidden_key(key) && value != "null") value = kHiddenValue;
  return values;
}

std::vector<ConfigDifference> config_differences(const std::vector<ConfigValues>& configs) {
  std::set<std::string> keys;
  for (const ConfigValues& config : configs)
    for (const auto& [key, value] : config) keys.insert(key);
  std::vector<ConfigDifference> differences;
  for (const std::string& key : keys) {
    ConfigDifference one{.key = key, .values = {}};
    for (const ConfigValues& config : configs) {
      const auto found = config.find(key);
      one.values.push_back(found == config.end() ? std::nullopt : std::optional(found->second));
    }
    const auto differs = [&](const auto& value) { return value != one.values.front(); };
    if (std::any_of(one.values.begin(), one.values.end(), differs))
      differences.push_back(std::move(one));
  }
  return differences;
}

}  // namespace kintsugi
