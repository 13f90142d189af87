#pragma once

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/yaml_reader.h"

namespace kintsugi {

// One map of a campaign: its values by key, and complaints with file, line and key. Keys that
// nobody asked for are refused.
class MapReader {
 public:
  // `path`: "nodes.best"; empty: the whole file. `line`: from 0; -1: unknown.
  MapReader(YAML::Node map, std::string source, std::string path, int line);

  const YAML::Node& node() const { return map_; }
  std::string where() const { return where(line_); }
  bool has(const std::string& key) const;

  // These leave the value as it is if the key is not given.
  void text(const char* key, std::string& value);
  void count(const char* key, std::int64_t& value, Range range);
  void number(const char* key, double& value, Range range);
  void duration(const char* key, double& value_s, Range range);
  void flag(const char* key, bool& value);
  std::optional<std::vector<std::string>> list(
      const char* key);  // of scalars; one counts as a list
  std::optional<MapReader> map(const char* key);
  MapReader inner(const std::string& key, const YAML::Node& map, int line) const;
  std::optional<YAML::Node> any(const char* key);

  // UserError for a key that cannot be overridden in a run of a campaign.
  void check_key(const std::string& key, int line) const;
  template <class Parse>
  auto parse(const std::string& key, Parse&& parser) const {
    try {
      return parser();
    } catch (const UserError& error) {
      complain(key, error.what());
    }
  }
  // An empty key: the map itself.
  [[noreturn]] void complain(const std::string& key, const std::string& problem) const;
  void refuse_others() const;

 private:
  std::string where(int line) const;
  std::string scalar(const char* key, const YAML::Node& value, const char* expected) const;
  void check(const char* key, double value, Range range) const;

  YAML::Node map_;
  std::string source_, path_;
  int line_;
  std::vector<std::string> known_;
};

}  // namespace kintsugi
