#include "launch/campaign/definition.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "core/error.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "core/yaml_reader.h"
#include "launch/campaign/map_reader.h"
#include "launch/campaign/sweep.h"
#include "launch/job_script.h"
#include "launch/matrix.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostNodes = 200;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr std::array<const char*, 4> kPrograms = {"data", "eval", "model", "report"};

bool is_name_sign(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

void check_node_name(const std::string& name, const std::string& where) {
  constexpr std::size_t kLongest = 60;
  if (name == "self") user_error("{}: {{self}} is the node itself: choose another name", where);
  if (name.empty() || name.size() > kLongest ||
      !std::all_of(name.begin(), name.end(), is_name_sign) || name.front() == '.' ||
      name.front() == '-')
    user_error("{}: the name of a node is its directory: use up to {} letters, digits, _, - and .",
               where, kLongest);
}

void read_launch(MapReader& parent, CampaignLaunch& launch) {
  auto reader = parent.map("launch");
  if (!reader) return;
  constexpr double kMany = 1e7;
  reader->text("machine", launch.machine);
  reader->count("ranks", launch.ranks, between(1, 4096));
  reader->count("nodes", launch.nodes, between(1, kMany));
  reader->count("spare_nodes", launch.spare_nodes, between(0, kMany));
  reader->count("min_nodes", launch.min_nodes, between(1, kMany));
  reader->count("ranks_per_node", launch.ranks_per_node, between(1, kMany));
  reader->duration("time", launch.time_s, between(1, 1e9));
  reader->text("account", launch.account);
  reader->text("partition", launch.partition);
  reader->text("qos", launch.qos);
  reader->text("container", launch.container);
  reader->text("exclude", launch.exclude);
  reader->flag("requeue", launch.requeue);
  reader->refuse_others();
}

void read_set(MapReader& reader, CampaignNode& node) {
  const auto set = reader.map("set");
  if (!set) return;
  for (const auto& item : set->node()) {
    const std::string key = item.first.Scalar();
    set->check_key(key, item.first.Mark().line);
    node.set.push_back(override_of(key, item.second));
  }
}

void read_steps(MapReader& reader, std::vector<std::int64_t>& steps) {
  const auto list = reader.list("at");
  if (!list) return;
  if (list->size() > kMostSweepPoints)
    reader.complain("at", fmt::format("more than {} steps", kMostSweepPoints));
  for (const std::string& text : *list) {
    const std::int64_t step = reader.parse("at", [&] { return parse_count(text); });
    if (step < 1 || step > kMostSteps) reader.complain("at", fmt::format("{} is no step", step));
    if (std::find(steps.begin(), steps.end(), step) != steps.end())
      reader.complain("at", fmt::format("step {} is given twice", step));
    steps.push_back(step);
  }
}

void read_run(MapReader& reader, CampaignNode& node) {
  reader.text("run", node.config);
  reader.text("like", node.like);
  read_set(reader, node);
  node.points = read_sweep(reader);
  reader.text("from", node.from);
  read_steps(reader, node.at);
  if (!node.at.empty() && node.from.empty())
    reader.complain("at", "the steps are those of a run that this one continues: give from");
}

void read_best(MapReader& reader, CampaignNode& node) {
  auto best = reader.map("best");
  node.kind = CampaignNodeKind::Best;
  best->text("of", node.of);
  best->text("metric", node.metric);
  std::string order = "lowest";
  best->text("order", order);
  if (order != "lowest" && order != "highest")
    best->complain("order", fmt::format("'{}' is neither lowest nor highest", order));
  node.highest = order == "highest";
  if (node.of.empty()) reader.complain("best", "the node whose runs are compared is missing: of");
  best->refuse_others();
}

void read_command(MapReader& reader, const std::string& key, CampaignNode& node) {
  node.kind = CampaignNodeKind::Command;
  std::string words;
  reader.text(key.c_str(), words);
  if (words.find('\0') != std::string::npos) reader.complain(key, "it has a zero byte");
  node.command = key == "command" ? words : "\"$kintsugi\" " + key + " " + words;
}

// What the node does: exactly one of these keys. `like` and `from` also stand for a run.
std::string kind_key(const MapReader& reader) {
  std::vector<std::string> found;
  for (const char* key : {"run", "best", "command", "data", "eval", "model", "report"})
    if (reader.has(key)) found.push_back(key);
  if (found.size() > 1)
    reader.complain("", fmt::format("it has {} and {}: make two nodes of it", found[0], found[1]));
  if (!found.empty()) return found.front();
  if (reader.has("like")) return "run";
  reader.complain("",
                  "it does nothing: give run, best, command, data, eval, model or report (or like, "
                  "for a run with the settings of another one)");
}

CampaignNode read_node(const std::string& name, MapReader reader, const CampaignLaunch& launch) {
  CampaignNode node{.name = name, .where = reader.where(), .launch = launch};
  const std::string key = kind_key(reader);
  if (key == "run")
    read_run(reader, node);
  else if (key == "best")
    read_best(reader, node);
  else
    read_command(reader, key, node);
  if (const auto after = reader.list("after")) node.after = *after;
  read_launch(reader, node.launch);
  reader.refuse_others();
  return node;
}

// What bash is within at a position: 'p' nothing (or a $(…) or subshell), 's' single, 'd' double
// quotes.
char quotes_at(const std::string& command, std::size_t at) {
  std::string inside = "p";
  for (std::size_t i = 0; i < at; ++i) {
    const char c = command[i];
    const char top = inside.back();
    if (top == 's') {
      if (c == '\'') inside.pop_back();
    } else if (c == '\\') {
      ++i;
    } else if (top == 'd') {
      if (c == '"') inside.pop_back();
      if (c == '$' && i + 1 < at && command[i + 1] == '(') inside += 'p', ++i;
    } else if (c == '\'' || c == '"' || c == '(') {
      inside += c == '(' ? 'p' : c == '"' ? 'd' : 's';
    } else if (c == ')' && inside.size() > 1) {
      inside.pop_back();
    } else if (c == '#' && (i == 0 || std::isspace(static_cast<unsigned char>(command[i - 1])))) {
      i = std::min(command.find('\n', i), at);  // a comment
    }
  }
  return inside.back();
}

}  // namespace

std::string quoted_at(const std::string& command, std::size_t at, const std::string& value) {
  const char quotes = quotes_at(command, at);
  if (quotes == 'p') return shell_quoted(value);
  std::string text;
  for (const char c : value) {
    if (quotes == 's' && c == '\'') {
      text += "'\\''";
      continue;
    }
    if (quotes == 'd' && std::string_view("\\\"$`").find(c) != std::string_view::npos) text += '\\';
    text += c;
  }
  return text;
}

std::optional<NodeReference> find_reference(const std::string& text, std::size_t from) {
  for (std::size_t begin = from; (begin = text.find('{', begin)) != std::string::npos; ++begin) {
    std::size_t end = begin + 1;
    while (end < text.size() && (is_name_sign(text[end]) || text[end] == '/')) ++end;
    const bool variable = begin > 0 && text[begin - 1] == '$';
    if (end > begin + 1 && end < text.size() && text[end] == '}' && !variable)
      return NodeReference{begin, end + 1, text.substr(begin + 1, end - begin - 1)};
  }
  return {};
}

std::vector<std::string> node_references(const std::string& text) {
  std::vector<std::string> names;
  for (auto found = find_reference(text, 0); found; found = find_reference(text, found->end))
    names.push_back(found->name);
  return names;
}

CampaignDefinition parse_campaign(const std::string& text, const std::string& source) {
  const YAML::Node root = load_yaml(text, source);
  if (!root.IsMap())
    user_error("{} is no campaign: the sections campaign and nodes are expected", source);
  CampaignDefinition definition{.source = source};
  MapReader reader(root, source, "", -1);
  auto campaign = reader.map("campaign");
  if (!campaign) user_error("{}: campaign is missing: campaign: {{dir: runs/mine}}", source);
  campaign->text("dir", definition.dir);
  campaign->number("max_gpu_hours", definition.max_gpu_hours, above(0));
  campaign->refuse_others();
  if (definition.dir.empty()) campaign->complain("dir", "the directory is missing");
  CampaignLaunch launch;
  read_launch(reader, launch);
  const auto nodes = reader.map("nodes");
  if (!nodes || nodes->node().size() == 0) user_error("{}: it has no nodes", source);
  if (nodes->node().size() > kMostNodes)
    user_error("{} has more than {} nodes: use sweeps, or several campaigns", source, kMostNodes);
  for (const auto& item : nodes->node()) {
    const std::string name = item.first.Scalar();
    const int line = item.first.Mark().line;
    check_node_name(name, fmt::format("{} line {}: node {}", source, line + 1, name));
    definition.nodes.push_back(read_node(name, nodes->inner(name, item.second, line), launch));
  }
  reader.refuse_others();
  return definition;
}

}  // namespace kintsugi
