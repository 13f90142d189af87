#include "core/yaml_document.h"

#include <fmt/ranges.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMaxTextBytes = 1 << 20;
constexpr int kMaxDepth = 64;
constexpr int kMaxNodes = 100'000;  // with aliases expanded: a short text can be a huge tree

std::string at_line(const std::string& source, int line) {
  return line < 0 ? source : fmt::format("{} line {}", source, line + 1);
}

// Checks the whole tree once, so that later code can traverse it without checks.
class TreeCheck {
 public:
  explicit TreeCheck(const std::string& source) : source_(source) {}

  void run(const YAML::Node& node, const std::string& prefix = "", int depth = 0) {
    if (depth > kMaxDepth)
      user_error("{} is nested more than {} levels deep: is it the right file?", source_,
                 kMaxDepth);
    if (++nodes_ > kMaxNodes)
      user_error("{} has more than {} values: is it the right file?", source_, kMaxNodes);
    if (node.IsSequence())
      for (const auto& item : node) run(item, prefix, depth + 1);
    if (!node.IsMap()) return;
    std::set<std::string> seen;
    for (const auto& item : node) {
      const std::string where = at_line(source_, item.first.Mark().line);
      if (!item.first.IsScalar())
        user_error("{}: a key must be a word, not {}", where, in_words(item.first));
      const std::string key = prefix + item.first.Scalar();
      if (!seen.insert(key).second) user_error("{}: {} is given twice: remove one", where, key);
      run(item.second, key + ".", depth + 1);
    }
  }

 private:
  const std::string& source_;
  int nodes_ = 0;
};

// Counts the documents and ignores their content.
class DocumentStarts : public YAML::EventHandler {
 public:
  int count = 0;
  int last_line = -1;

  void OnDocumentStart(const YAML::Mark& mark) override {
    ++count;
    last_line = mark.line;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// YAML::Load ignores everything after the first document, and YAML::LoadAll finds infinitely many
// documents after a stray bracket.
void refuse_second_document(const std::string& text, const std::string& source) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.count < 2 && parser.HandleNextDocument(starts)) {
  }
  if (starts.count > 1)
    user_error(
        "{}: text after the end of the configuration (a stray bracket or a second document): "
        "remove it",
        at_line(source, starts.last_line));
}

struct Item {
  int line;
  YAML::Node value;
};

std::optional<Item> find_item(const YAML::Node& map, std::string_view key) {
  if (!map.IsMap()) return {};
  for (const auto& item : map)
    if (item.first.Scalar() == key) return Item{item.first.Mark().line, item.second};
  return {};
}

// `step` is a key, or a key with an index such as "stages[1]".
std::optional<Item> find_step(const YAML::Node& map, std::string_view step) {
  const std::size_t bracket = step.find('[');
  auto item = find_item(map, step.substr(0, bracket));
  if (!item || bracket == std::string_view::npos) return item;
  const std::size_t index = std::strtoull(step.data() + bracket + 1, nullptr, 10);
  if (!item->value.IsSequence() || index >= item->value.size()) return {};
  const YAML::Node found = item->value[index];
  return Item{found.Mark().is_null() ? -1 : found.Mark().line, found};
}

std::optional<Item> find_path(const YAML::Node& root, std::string_view path) {
  YAML::Node node = root;
  while (true) {
    const std::size_t dot = path.find('.');
    auto item = find_step(node, path.substr(0, dot));
    if (!item || dot == std::string_view::npos) return item;
    node.reset(item->value);
    path.remove_prefix(dot + 1);
  }
}

// A copy without line numbers, since the value of an override is not in a file.
YAML::Node without_marks(const YAML::Node& node) {
  YAML::Node copy(node.Type());
  if (node.IsScalar()) copy = node.Scalar();
  if (node.IsSequence())
    for (const auto& item : node) copy.push_back(without_marks(item));
  if (node.IsMap())
    for (const auto& item : node)
      copy.force_insert(item.first.Scalar(), without_marks(item.second));
  return copy;
}

// Returns a copy of the map with `path` set. The original stays, since aliases may refer to it.
YAML::Node with_value(const YAML::Node& map, std::string_view path, const YAML::Node& value,
                      const std::string& done) {
  if (map.IsDefined() && !map.IsNull() && !map.IsMap())
    user_error("{} is {} and has no keys below it; give its whole value, a list as [a, b]", done,
               in_words(map));
  const std::size_t dot = path.find('.');
  const std::string key(path.substr(0, dot));
  const bool last = dot == std::string_view::npos;
  const auto replacement = [&](const YAML::Node& old) {
    return last ? value
                : with_value(old, path.substr(dot + 1), value,
                             done.empty() ? key : done + "." + key);
  };
  YAML::Node copy(YAML::NodeType::Map);
  bool replaced = false;
  for (const auto& item : map) {
    const bool matches = item.first.Scalar() == key;
    replaced |= matches;
    copy.force_insert(item.first, matches ? replacement(item.second) : item.second);
  }
  if (!replaced) copy.force_insert(key, replacement(YAML::Node()));
  return copy;
}

std::string key_of(const std::string& assignment) {
  return assignment.substr(0, assignment.find('='));
}

bool covers(const std::string& outer, const std::string& key) {
  return key.starts_with(outer) &&
         (key.size() == outer.size() || key[outer.size()] == '.' || key[outer.size()] == '[');
}

}  // namespace

std::string in_words(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return fmt::format("'{}'", node.Scalar());
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a map";
    default:
      return "nothing";
  }
}

int line_of_key(const YAML::Node& map, std::string_view key) {
  const auto item = find_item(map, key);
  return item ? item->line : -1;
}

YAML::Node load_yaml(const std::string& text, const std::string& source) {
  if (text.size() > kMaxTextBytes)
    user_error("{} has {} bytes, but a configuration has at most {}: is it the right file?", source,
               text.size(), kMaxTextBytes);
  try {
    refuse_second_document(text, source);
    const YAML::Node tree = YAML::Load(text);
    TreeCheck(source).run(tree);
    return tree;
  } catch (const YAML::Exception& error) {
    user_error("{} is not valid YAML: {}", at_line(source, error.mark.line), error.msg);
  }
}

void apply_override(YAML::Node& root, const std::string& assignment) {
  const std::string source = "--set " + assignment;
  const std::string key = key_of(assignment);
  if (key.size() == assignment.size())
    user_error("{}: there is no '=': write key=value, for example optimizer.lr=3e-4", source);
  if (key.empty() || key.front() == '.' || key.back() == '.' ||
      key.find("..") != std::string::npos || key.find_first_of(" \t\n[]{}") != std::string::npos)
    user_error("{}: '{}' is not a key: write for example optimizer.lr=3e-4", source, key);
  if (std::ranges::count(key, '.') >= kMaxDepth)
    user_error("{}: the key has too many levels", source);
  const YAML::Node value = without_marks(load_yaml(assignment.substr(key.size() + 1), source));
  try {
    root.reset(with_value(root, key, value, ""));
  } catch (const UserError& error) {
    user_error("{}: {}", source, error.what());
  }
}

YamlDocument::YamlDocument(const std::string& text, std::string source,
                           std::vector<std::string> overrides,
                           const std::vector<RenamedSection>& renamed)
    : source_(std::move(source)), overrides_(std::move(overrides)) {
  root_ = std::make_shared<YAML::Node>(load_yaml(text, source_));
  if (root_->IsNull()) root_->reset(YAML::Node(YAML::NodeType::Map));
  if (!root_->IsMap())
    user_error("{} is not a configuration: keys like 'run: …' are expected, found {}", source_,
               root_->IsScalar() ? "a string" : in_words(*root_));
  for (const RenamedSection& section : renamed) rename(section);
  for (const std::string& assignment : overrides_) apply_override(*root_, assignment);
}

void YamlDocument::rename(const RenamedSection& section) {
  for (std::string& assignment : overrides_)
    if (key_of(assignment) == section.before || assignment.starts_with(section.before + "."))
      assignment.replace(0, section.before.size(), section.now);
  const auto old = find_item(*root_, section.before);
  if (!old) return;
  if (find_item(*root_, section.now))
    user_error("{}: {} is the old name of {}, which is given, too: remove {}",
               at_line(source_, old->line), section.before, section.now, section.before);
  for (auto item : *root_)  // changes the key where it is, so that it keeps its line
    if (item.first.Scalar() == section.before) item.first = section.now;
}

bool YamlDocument::has(std::string_view key) const { return find_path(*root_, key).has_value(); }

std::string YamlDocument::where(const std::string& key) const {
  const auto item = find_path(*root_, key);
  return where(key, item ? item->line : -1);
}

std::string YamlDocument::where(const std::string& key, int line) const {
  for (auto assignment = overrides_.rbegin(); assignment != overrides_.rend(); ++assignment)
    if (covers(key_of(*assignment), key)) return "--set " + *assignment;
  return at_line(source_, line);
}

std::string YamlDocument::source_of(const std::string& section) const {
  std::vector<std::string> below;
  for (const std::string& assignment : overrides_)
    if (covers(section, key_of(assignment))) below.push_back("--set " + assignment);
  return below.empty() ? source_ : fmt::format("{} (with {})", source_, fmt::join(below, ", "));
}

std::string yaml_quoted(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

}  // namespace kintsugi
