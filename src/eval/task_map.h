#pragma once

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/units.h"
#include "core/yaml_reader.h"

namespace kintsugi {

// A map of a task file. Each key is read once; finish() refuses the others.
class TaskMap {
 public:
  TaskMap(YAML::Node node, std::string source)
      : node_(std::move(node)), source_(std::move(source)) {
    if (!node_.IsMap()) user_error("{} is not a map", source_);
  }

  const std::string& source() const { return source_; }
  bool has(const std::string& key) const { return node_[key].IsDefined(); }
  // yaml-cpp throws if the type of a missing value is asked for.
  bool is_map(const std::string& key) const { return has(key) && node_[key].IsMap(); }
  // Undefined if the key is missing or null.
  YAML::Node take(const std::string& key) {
    known_.push_back(key);
    const YAML::Node node = std::as_const(node_)[key];  // does not insert the key
    if (!node.IsDefined() || node.IsNull()) return YAML::Node(YAML::NodeType::Undefined);
    return node;
  }
  template <class T>
  void read(const std::string& key, T& value) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return;
    if (!node.IsScalar()) user_error("{}: {} must be {}", source_, key, YamlScalar<T>::expected());
    try {
      value = YamlScalar<T>::parse(node.Scalar());
    } catch (const UserError& error) {
      user_error("{}: {}: {}", source_, key, error.what());
    }
  }
  void read(const std::string& key, std::string& value) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return;
    if (!node.IsScalar()) user_error("{}: {} must be a string", source_, key);
    value = node.Scalar();
  }
  // One string or a list of strings.
  void read(const std::string& key, std::vector<std::string>& values) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return;
    values.clear();
    if (node.IsScalar()) return values.push_back(node.Scalar());
    if (!node.IsSequence()) user_error("{}: {} must be a list of strings", source_, key);
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) user_error("{}: {} must be a list of strings", source_, key);
      values.push_back(item.Scalar());
    }
  }
  std::vector<TaskMap> read_maps(const std::string& key) {
    std::vector<TaskMap> maps;
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return maps;
    if (!node.IsSequence()) user_error("{}: {} must be a list of maps", source_, key);
    for (const YAML::Node& item : node)
      maps.emplace_back(item, fmt::format("{}: {}", source_, key));
    return maps;
  }
  std::optional<TaskMap> read_map(const std::string& key) {
    const YAML::Node node = take(key);
    if (!node.IsDefined()) return std::nullopt;
    return TaskMap(node, fmt::format("{}: {}", source_, key));
  }
  const YAML::Node& node() const { return node_; }
  void ignore(const std::vector<std::string>& keys) {
    known_.insert(known_.end(), keys.begin(), keys.end());
  }
  void finish() const {
    for (const auto& item : node_) {
      const std::string& key = item.first.Scalar();
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string near = nearest_word(key, known_);
      user_error("{}: unknown key '{}'{}", source_, key,
                 near.empty() ? "" : fmt::format(": did you mean '{}'?", near));
    }
  }

 private:
  YAML::Node node_;
  std::string source_;
  std::vector<std::string> known_;
};

}  // namespace kintsugi
