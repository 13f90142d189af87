#include "launch/campaign/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostTasks = 2000;

std::string node_name_of(const std::string& reference) {
  return reference.substr(0, reference.find('/'));
}

bool is_node(const CampaignDefinition& definition, const std::string& name) {
  return std::any_of(definition.nodes.begin(), definition.nodes.end(),
                     [&](const CampaignNode& node) { return node.name == name; });
}

// What is in braces in a node, nodes or not.
std::vector<std::string> references_of(const CampaignNode& node) {
  std::vector<std::string> names = node_references(node.command);
  const auto add = [&](const std::string& text) {
    for (std::string& name : node_references(text)) names.push_back(std::move(name));
  };
  for (const std::string& text : node.set) add(text);
  for (const CampaignPoint& point : node.points)
    for (const std::string& text : point.overrides) add(text);
  return names;
}

// The nodes that a node names, in its keys and in braces.
std::vector<std::string> needed_nodes(const CampaignDefinition& definition,
                                      const CampaignNode& node) {
  std::vector<std::string> names = node.after;
  for (const std::string& name : {node.like, node.from, node.of})
    if (!name.empty()) names.push_back(name);
  for (const std::string& name : references_of(node))
    if (is_node(definition, node_name_of(name))) names.push_back(node_name_of(name));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

bool is_reference(const CampaignDefinition& definition, const std::string& name) {
  return name == "self" || is_node(definition, node_name_of(name));
}

std::vector<std::string> likely_typos(const CampaignDefinition& definition) {
  std::vector<std::string> names, typos;
  for (const CampaignNode& node : definition.nodes) names.push_back(node.name);
  for (const CampaignNode& node : definition.nodes)
    for (const std::string& name : references_of(node)) {
      if (is_reference(definition, name)) continue;
      if (const std::string near = nearest_word(node_name_of(name), names); !near.empty())
        typos.push_back(fmt::format("{}: node {}: {{{}}} (did you mean '{}'?)", node.where,
                                    node.name, name, near));
    }
  return typos;
}

CampaignGraph::CampaignGraph(CampaignDefinition definition) : definition_(std::move(definition)) {
  check_names();
  check_kinds();
  for (const std::size_t node : order()) add_tasks(node);
  for (const CampaignTask& task : tasks_) {
    const CampaignNode& node = node_of(task);
    if (!node.like.empty()) single(node, "like", node.like);
    if (!node.from.empty()) single(node, "from", node.from);
    check_references(node);
  }
}

void CampaignGraph::check_names() const {
  std::vector<std::string> names;
  for (const CampaignNode& node : definition_.nodes) names.push_back(node.name);
  for (const CampaignNode& node : definition_.nodes)
    for (const std::string& name : needed_nodes(definition_, node)) {
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      const std::string near = nearest_word(name, names);
      user_error("{}: node {}: there is no node '{}'{}", node.where, node.name, name,
                 near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
    }
}

// {cool/step-40}; nodes were checked before.
void CampaignGraph::check_references(const CampaignNode& node) const {
  for (const std::string& name : node_references(node.command)) try {
      if (name != "self" && is_reference(definition_, name)) named(name);
    } catch (const UserError& error) {
      user_error("{}: node {}: {}", node.where, node.name, error.what());
    }
}

void CampaignGraph::check_kinds() const {
  for (const CampaignNode& node : definition_.nodes) {
    const auto refuse = [&](const char* key, const std::string& name, const char* what) {
      user_error("{}: node {}: {}: {} is {}, not a run", node.where, node.name, key, name, what);
    };
    for (const auto& [key, name] :
         {std::pair{"like", node.like}, std::pair{"from", node.from}, std::pair{"of", node.of}}) {
      if (name.empty()) continue;
      const CampaignNodeKind kind = this->node(name).kind;
      if (kind == CampaignNodeKind::Command) refuse(key, name, "a command");
      if (kind == CampaignNodeKind::Best && key == std::string("of")) refuse(key, name, "a choice");
    }
    for (const std::string& text : node.set) {
      const std::vector<std::string> names = node_references(text);
      if (text.starts_with("model") &&
          std::any_of(names.begin(), names.end(),
                      [&](const std::string& name) { return is_reference(definition_, name); }))
        user_error(
            "{}: node {}: {}: a model that another node makes is not known beforehand; "
            "use from",
            node.where, node.name, text);
    }
  }
}

// In the order of the file, as far as that is possible.
std::vector<std::size_t> CampaignGraph::order() const {
  std::vector<std::size_t> order;
  std::vector<int> state(definition_.nodes.size(), 0);  // 1: under way, 2: done
  std::vector<std::string> path;
  const std::function<void(std::size_t)> visit = [&](std::size_t at) {
    const CampaignNode& node = definition_.nodes[at];
    if (state[at] == 2) return;
    path.push_back(node.name);
    if (state[at] == 1) {
      const auto begin = std::find(path.begin(), path.end(), node.name);
      user_error("{}: node {}: it would wait for itself: {}", node.where, node.name,
                 fmt::join(begin, path.end(), " needs "));
    }
    state[at] = 1;
    for (const std::string& name : needed_nodes(definition_, node))
      visit(static_cast<std::size_t>(&this->node(name) - definition_.nodes.data()));
    state[at] = 2;
    path.pop_back();
    order.push_back(at);
  };
  for (std::size_t i = 0; i < definition_.nodes.size(); ++i) visit(i);
  return order;
}

void CampaignGraph::add_tasks(std::size_t number) {
  const CampaignNode& node = definition_.nodes[number];
  const std::size_t count =
      std::max<std::size_t>(1, node.points.size()) * std::max<std::size_t>(1, node.at.size());
  if (tasks_.size() + count > kMostTasks)  // before they need memory
    user_error("{}: node {}: the campaign has more than {} jobs", node.where, node.name,
               kMostTasks);
  CampaignTask task{.name = node.name, .node = number, .overrides = node.set};
  for (const std::string& name : needed_nodes(definition_, node))
    for (const std::size_t needed : tasks_of(name)) task.needs.push_back(needed);
  std::vector<CampaignTask> added = {task};
  if (!node.points.empty()) {
    added.clear();
    for (const CampaignPoint& point : node.points) {
      CampaignTask& one = added.emplace_back(task);
      one.name += "/" + point.name;
      one.overrides.insert(one.overrides.end(), point.overrides.begin(), point.overrides.end());
    }
  }
  if (!node.at.empty()) {
    const std::vector<CampaignTask> before = std::move(added);
    added.clear();
    for (const CampaignTask& one : before)
      for (const std::int64_t step : node.at) {
        CampaignTask& branch = added.emplace_back(one);
        branch.at = step;
        branch.name += fmt::format("{}step-{}", node.points.empty() ? "/" : "_", step);
      }
  }
  tasks_.insert(tasks_.end(), added.begin(), added.end());
}

const CampaignNode& CampaignGraph::node(const std::string& name) const {
  for (const CampaignNode& node : definition_.nodes)
    if (node.name == name) return node;
  failure("there is no node {}", name);
}

std::vector<std::size_t> CampaignGraph::tasks_of(const std::string& node) const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < tasks_.size(); ++i)
    if (node_of(tasks_[i]).name == node) found.push_back(i);
  return found;
}

std::vector<std::size_t> CampaignGraph::named(const std::string& name) const {
  if (auto found = tasks_of(name); !found.empty()) return found;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].name == name) return {i};
    names.push_back(node_of(tasks_[i]).name);
    names.push_back(tasks_[i].name);
  }
  const std::string near = nearest_word(name, names);
  user_error("{} has no node '{}'{}", definition_.source, name,
             near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
}

std::vector<std::size_t> CampaignGraph::followers(const std::vector<std::size_t>& tasks) const {
  std::vector<bool> marked(tasks_.size(), false);
  for (const std::size_t task : tasks) marked[task] = true;
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const auto& needs = tasks_[i].needs;
    if (marked[i] ||
        std::none_of(needs.begin(), needs.end(), [&](std::size_t need) { return marked[need]; }))
      continue;
    marked[i] = true;
    found.push_back(i);
  }
  return found;
}

std::size_t CampaignGraph::single(const CampaignNode& user, const char* key,
                                  const std::string& name) const {
  const std::vector<std::size_t> found = tasks_of(name);
  if (found.size() != 1)
    user_error("{}: node {}: {}: {} is {} runs: choose one of them with best", user.where,
               user.name, key, name, found.size());
  return found.front();
}

std::size_t CampaignGraph::chosen(std::size_t task, const Choice& choice) const {
  return node_of(tasks_[task]).kind == CampaignNodeKind::Best ? choice(task) : task;
}

const std::string& CampaignGraph::config_of(const CampaignTask& task) const {
  const CampaignNode* node = &node_of(task);
  while (node->config.empty()) {  // there are no cycles
    const std::string& next = node->kind == CampaignNodeKind::Best ? node->of : node->like;
    node = &this->node(next);
  }
  return node->config;
}

std::vector<std::string> CampaignGraph::overrides_of(const CampaignTask& task,
                                                     const Choice& choice) const {
  std::vector<std::string> all;
  const CampaignNode& node = node_of(task);
  if (!node.like.empty())
    all = overrides_of(tasks_[chosen(single(node, "like", node.like), choice)], choice);
  all.insert(all.end(), task.overrides.begin(), task.overrides.end());
  return all;
}

std::size_t CampaignGraph::source_of(const CampaignTask& task, const Choice& choice) const {
  const CampaignNode& node = node_of(task);
  return chosen(single(node, "from", node.from), choice);
}

std::vector<std::filesystem::path> CampaignGraph::directories_named(const CampaignTask& task,
                                                                    const std::string& name,
                                                                    const Choice& choice) const {
  if (name == "self") return {directory_of(task)};
  std::vector<std::filesystem::path> found;
  for (const std::size_t one : named(name))
    found.push_back(directory_of(tasks_[chosen(one, choice)]));
  return found;
}

std::vector<std::size_t> CampaignGraph::choices_of(const CampaignTask& task) const {
  std::vector<std::size_t> found;
  const CampaignNode& node = node_of(task);
  const auto add = [&](std::size_t one) {
    if (node_of(tasks_[one]).kind == CampaignNodeKind::Best) found.push_back(one);
  };
  if (!node.from.empty()) add(single(node, "from", node.from));
  if (!node.like.empty()) {
    const std::size_t like = single(node, "like", node.like);
    add(like);
    for (const std::size_t more : choices_of(tasks_[like])) found.push_back(more);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace kintsugi
