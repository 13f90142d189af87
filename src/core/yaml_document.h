#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace YAML {
class Node;
}

namespace kintsugi {

// One YAML document that is safe to walk: of bearable size and depth, without cycles, with word
// keys that occur once. Everything else is a UserError with the line. An empty text is a null node.
YAML::Node load_yaml(const std::string& text, const std::string& source);

// "a.b=value" for a tree: makes the maps on the way; the value is YAML, so [1, 2] is a list.
void apply_override(YAML::Node& root, const std::string& assignment);

// A YAML text that is safe to walk: of bearable size and depth, without cycles, with word keys that
// occur once. Everything else is a UserError with the line.
class YamlDocument {
 public:
  YamlDocument(const std::string& text, std::string source,
               std::vector<std::string> overrides = {});

  const std::string& source() const { return source_; }
  const YAML::Node& root() const { return *root_; }
  bool has(std::string_view key) const;  // "optimizer.lr"
  // Who set a key: "demo.yaml line 12", "--set optimizer.lr=1", or the source when nobody did.
  std::string where(const std::string& key) const;
  std::string where(const std::string& key, int line) const;
  // The source, with the overrides below `section` in words.
  std::string source_of(const std::string& section) const;

 private:
  std::string source_;
  std::vector<std::string> overrides_;
  std::shared_ptr<YAML::Node> root_;
};

// For messages.
std::string in_words(const YAML::Node& node);                  // 'text', a list, a map, nothing
int line_of_key(const YAML::Node& map, std::string_view key);  // from 0; -1 when no file holds it

// As a scalar in double quotes, whatever is in it.
std::string yaml_quoted(const std::string& text);

}  // namespace kintsugi
