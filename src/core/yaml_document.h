#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace YAML {
class Node;
}

namespace kintsugi {

// Parses one YAML document and checks that it is safe to traverse: limited size and depth, no
// cycles, scalar keys without duplicates. Throws UserError with the line otherwise. An empty text
// gives a null node.
YAML::Node load_yaml(const std::string& text, const std::string& source);

// Applies "a.b=value" to a tree and creates missing maps. The value is YAML, so [1, 2] is a list.
void apply_override(YAML::Node& root, const std::string& assignment);

// A section (a key of the root) that had another name before. The old one is still read.
struct RenamedSection {
  std::string before, now;
};

// A YAML document with overrides, checked as by load_yaml. The root is a map.
class YamlDocument {
 public:
  YamlDocument(const std::string& text, std::string source, std::vector<std::string> overrides = {},
               const std::vector<RenamedSection>& renamed = {});

  const std::string& source() const { return source_; }
  const YAML::Node& root() const { return *root_; }
  bool has(std::string_view key) const;  // "optimizer.lr", "stages[1].data.train"
  // Where a key was set: "demo.yaml line 12", "--set optimizer.lr=1", or the source if it is not
  // set.
  std::string where(const std::string& key) const;
  std::string where(const std::string& key, int line) const;
  // The source and the overrides below `section`, for messages.
  std::string source_of(const std::string& section) const;

 private:
  void rename(const RenamedSection& section);

  std::string source_;
  std::vector<std::string> overrides_;
  std::shared_ptr<YAML::Node> root_;
};

// For messages.
std::string in_words(const YAML::Node& node);  // 'text', a list, a map, nothing
int line_of_key(const YAML::Node& map,
                std::string_view key);  // from 0; -1 if the key is not from a file

// A YAML scalar in double quotes, escaped.
std::string yaml_quoted(const std::string& text);

}  // namespace kintsugi
