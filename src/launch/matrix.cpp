#include "launch/matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/yaml_document.h"

namespace kintsugi {
namespace {

constexpr std::size_t kLongestName = 200;  // file systems take 255

// One axis of the matrix.
struct Axis {
  std::string key;
  struct Value {
    std::string label, override;
  };
  std::vector<Value> values;
};

// A value as YAML on one line.
std::string flow_text(const YAML::Node& node) {
  if (node.IsNull() || !node.IsDefined()) return "null";
  if (node.IsScalar()) return yaml_quoted(node.Scalar());
  std::string text;
  for (const auto& item : node) {
    if (!text.empty()) text += ", ";
    text += node.IsMap() ? yaml_quoted(item.first.Scalar()) + ": " + flow_text(item.second)
                         : flow_text(item);
  }
  return node.IsMap() ? "{" + text + "}" : "[" + text + "]";
}

// A short name for a value: a word, the last part of a path, the name of a model or a file. Empty
// if it has none.
std::string label_of(const YAML::Node& value) {
  if (value.IsScalar()) {
    const std::string text = value.Scalar();
    const std::string last = std::filesystem::path(text).filename().string();
    return last.empty() ? text : last;
  }
  if (value.IsMap()) {
    for (const char* key : {"name", "preset", "init", "config", "path"})
      if (const YAML::Node item = value[key]; item && item.IsScalar()) return label_of(item);
    return "";
  }
  std::string text;
  if (!value.IsSequence()) return "";
  for (const auto& item : value) {
    const std::string one = label_of(item);
    if (one.empty()) return "";
    text += (text.empty() ? "" : "+") + one;
  }
  return text;
}

std::string file_name(std::string text) {
  for (char& c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
          c == '+' || c == '_' || c == '-'))
      c = '-';
  return text;
}

Axis read_axis(const std::string& key, const YAML::Node& values, const std::string& where) {
  if (key == "run.dir")
    user_error("{}: matrix.run.dir: the cells have their own directories below run.dir", where);
  if (!values.IsSequence() || values.size() == 0)
    user_error("{}: matrix.{}: a list of values is expected, found {}", where, key,
               values.IsSequence() ? "an empty one" : in_words(values));
  Axis axis{.key = key, .values = {}};
  std::set<std::string> seen;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string override = override_of(key, values[i]);
    if (!seen.insert(override).second)
      user_error("{}: matrix.{}: item {} is the same as one before: remove it", where, key, i + 1);
    axis.values.push_back({label_for(key, values[i], i), override});
  }
  return axis;
}

// Replaces the lines of `matrix` by empty ones, so that messages name the right lines.
std::string without_matrix(const std::string& text, const YAML::Node& root,
                           const std::string& source) {
  int first = -1, after = -1;
  for (const auto& item : root) {
    const int line = item.first.Mark().line;
    if (item.first.Scalar() == "matrix")
      first = line;
    else if (first >= 0 && after < 0)
      after = line;
  }
  std::istringstream lines(text);
  std::string rest;
  int number = 0;
  for (std::string line; std::getline(lines, line); ++number)
    rest += (number >= first && (after < 0 || number < after) ? "" : line) + "\n";
  for (const auto& item : root)
    if (item.first.Scalar() != "matrix" && item.first.Mark().line == first)
      user_error("{} line {}: give matrix lines of its own", source, first + 1);
  return rest;
}

struct LabelledCell {
  std::vector<std::string> labels, overrides;
};

std::vector<MatrixCell> combine(const std::vector<Axis>& axes) {
  std::vector<LabelledCell> cells(1);
  for (const Axis& axis : axes) {
    std::vector<LabelledCell> more;
    for (const LabelledCell& cell : cells)
      for (const Axis::Value& value : axis.values) {
        LabelledCell next = cell;
        next.labels.push_back(value.label);
        next.overrides.push_back(value.override);
        more.push_back(std::move(next));
      }
    cells = std::move(more);
  }
  std::vector<MatrixCell> named;
  std::set<std::string> names;
  for (LabelledCell& cell : cells)
    named.push_back({axes.empty() ? "" : cell_name(cell.labels, names), std::move(cell.overrides)});
  return named;
}

}  // namespace

// model: llama-tiny is the preset; data.train: en.txt is a list with one file.
std::string override_of(const std::string& key, const YAML::Node& value) {
  if (key == "model" && value.IsScalar()) return "model.preset=" + flow_text(value);
  if (key == "data.train" && value.IsScalar())
    return "data.train=[{path: " + flow_text(value) + "}]";
  return key + "=" + flow_text(value);
}

std::string label_for(const std::string& key, const YAML::Node& value, std::size_t index) {
  const std::string label = label_of(value);
  const std::string text = label.empty() ? std::to_string(index + 1) : label;
  if (key == "model" || key == "data.train") return file_name(text);
  const std::size_t dot = key.rfind('.');
  return file_name((dot == std::string::npos ? key : key.substr(dot + 1)) + "-" + text);
}

bool keys_overlap(const std::string& a, const std::string& b) {
  return a == b || a.starts_with(b + ".") || b.starts_with(a + ".");
}

std::string cell_name(const std::vector<std::string>& labels, std::set<std::string>& names) {
  std::string plain = fmt::format("{}", fmt::join(labels, "_"));
  if (plain.size() > kLongestName) plain.resize(kLongestName);
  if (plain.starts_with('.')) plain.insert(0, "_");
  std::string name = plain;
  for (int i = 2; !names.insert(name).second; ++i) name = fmt::format("{}-{}", plain, i);
  return name;
}

Matrix read_matrix(const std::string& text, const std::string& source) {
  const YAML::Node root = load_yaml(text, source);
  const YAML::Node section = root.IsMap() ? root["matrix"] : YAML::Node(YAML::NodeType::Undefined);
  if (!root.IsMap() || !section) return {.text = text, .cells = {MatrixCell{}}};
  const int line = line_of_key(root, "matrix");
  if (!section.IsMap() || section.size() == 0)
    user_error(
        "{} line {}: matrix: keys with lists of values are expected, such as layout.tp: [1, 2]",
        source, line + 1);
  std::vector<Axis> axes;
  std::size_t cells = 1;
  for (const auto& item : section) {
    const std::string where = fmt::format("{} line {}", source, item.first.Mark().line + 1);
    axes.push_back(read_axis(item.first.Scalar(), item.second, where));
    for (std::size_t i = 0; i + 1 < axes.size(); ++i)
      if (keys_overlap(axes[i].key, axes.back().key))
        user_error("{}: matrix has {} and {}, which set the same values", where, axes[i].key,
                   axes.back().key);
    cells *= axes.back().values.size();
    if (cells > kMostCells)
      user_error("{}: the matrix has more than {} cells: divide it", where, kMostCells);
  }
  Matrix matrix{.text = without_matrix(text, root, source), .cells = combine(axes)};
  for (const Axis& axis : axes) matrix.keys.push_back(axis.key);
  return matrix;
}

void check_overrides(const Matrix& matrix, const std::vector<std::string>& overrides) {
  for (const std::string& override : overrides)
    for (const std::string& key : matrix.keys)
      if (keys_overlap(override.substr(0, override.find('=')), key))
        user_error("--set {}: the matrix varies {}: remove one of them", override, key);
}

}  // namespace kintsugi
