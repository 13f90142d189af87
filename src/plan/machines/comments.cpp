#include "plan/machines/comments.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "core/yaml_document.h"
#include "plan/machines/descriptions.h"

namespace kintsugi {
namespace {

// The text behind the first # that follows a space and is not inside of quotes.
std::string comment_of_line(const std::string& line) {
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i], before = i == 0 ? ' ' : line[i - 1];
    const bool starts = before == ' ' || before == '[' || before == '{' || before == ',';
    if (quote != 0 && c == quote && !(quote == '"' && before == '\\'))
      quote = 0;
    else if (quote == 0 && starts && (c == '"' || c == '\''))
      quote = c;
    else if (quote == 0 && c == '#' && before == ' ')
      return line.substr(std::min(line.find_first_not_of("# ", i), line.size()));
  }
  return "";
}

class CommentReader {
 public:
  explicit CommentReader(const std::string& text) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines_.push_back(line);
  }

  void read(const YAML::Node& node, const std::string& prefix) {
    if (node.IsMap())
      for (const auto& item : node) {
        const std::string key = prefix + (prefix.empty() ? "" : ".") + item.first.Scalar();
        add(key, item.first.Mark());
        read(item.second, key);
      }
    if (node.IsSequence())
      for (std::size_t i = 0; i < node.size(); ++i) {
        const std::string key = fmt::format("{}[{}]", prefix, i);
        add(key, node[i].Mark());
        read(node[i], key);
      }
  }

  MachineComments comments = {};

 private:
  void add(const std::string& key, const YAML::Mark& mark) {
    const auto line = static_cast<std::size_t>(mark.line);
    comments[key] = mark.line >= 0 && line < lines_.size() ? comment_of_line(lines_[line]) : "";
  }

  std::vector<std::string> lines_;
};

// Keys of the user's file, which start with `prefix`, replace those of the machine.
void replace_comments(const MachineComments& site, const std::string& prefix,
                      const std::string& file, MachineComments& comments) {
  for (const auto& [key, comment] : site)
    if (key.starts_with(prefix))
      comments[key.substr(prefix.size())] = file + (comment.empty() ? "" : ": " + comment);
}

}  // namespace

MachineComments parse_comments(const std::string& text, const std::string& source) {
  const YamlDocument document(text, source);  // checks depth and size
  CommentReader reader(text);
  reader.read(document.root(), "");
  return std::move(reader.comments);
}

MachineComments machine_comments(const std::string& name_or_path) {
  const auto [yaml, source] =
      find_description("machine", embedded_machines(), name_or_path, kMachineHint);
  MachineComments comments = parse_comments(yaml, source);
  const auto names = names_of(embedded_machines());
  if (std::ranges::find(names, name_or_path) == names.end()) return comments;
  if (const auto site = site_machines())
    replace_comments(parse_comments(site->yaml, site->source), name_or_path + ".", site->source,
                     comments);
  return comments;
}

}  // namespace kintsugi
