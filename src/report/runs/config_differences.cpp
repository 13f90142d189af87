#include "report/runs/config_differences.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "core/yaml_document.h"
#include "report/runs/public_config.h"

namespace kintsugi {
namespace {

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

}  // namespace

ConfigValues all_config_values(const std::string& yaml, std::string* problem) {
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
