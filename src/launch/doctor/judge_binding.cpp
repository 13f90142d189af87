#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "launch/doctor/judge.h"

namespace kintsugi {
namespace {

using Cores = std::vector<int>;  // sorted

Cores common(const Cores& a, const Cores& b) {
  Cores both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}
Cores joined_cores(const Cores& a, const Cores& b) {
  Cores any;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(any));
  return any;
}
Cores without(const Cores& a, const Cores& b) {
  Cores rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  return rest;
}

using Node = std::vector<const RankFacts*>;

Cores usable_cores(const Node& node) {
  Cores usable;
  for (const RankFacts* rank : node) usable = joined_cores(usable, rank->binding.usable);
  return usable;
}

int threads_of(const Node& node) {
  int threads = 0;
  for (const RankFacts* rank : node) threads += rank->binding.threads;
  return threads;
}

// Ranks that share cores while other cores are idle. An error if their threads do not fit into
// their cores; else a warning: `--bind-to socket` may put two ranks on one socket.
void judge_shared_cores(const Node& node, Findings& findings) {
  Cores used;
  for (const RankFacts* rank : node) used = joined_cores(used, rank->binding.cores);
  const Cores idle = without(usable_cores(node), used);
  if (idle.empty()) return;
  Finding finding{.severity = Severity::Warning, .check = "binding", .text = ""};
  int pairs = 0;
  for (std::size_t i = 0; i < node.size(); ++i)
    for (std::size_t j = i + 1; j < node.size(); ++j) {
      const BindingFacts &a = node[i]->binding, &b = node[j]->binding;
      const Cores shared = common(a.cores, b.cores);
      if (shared.empty() || !a.bound() || !b.bound()) continue;
      const auto room = static_cast<int>(joined_cores(a.cores, b.cores).size());
      const bool crowded = a.threads + b.threads > room;
      ++pairs;
      if (!finding.text.empty() && (!crowded || finding.severity == Severity::Error)) continue;
      finding.severity = crowded ? Severity::Error : Severity::Warning;
      finding.text = fmt::format(
          "ranks {} and {} on {} share core{} {} while core{} {} {} idle", node[i]->rank,
          node[j]->rank, node[i]->node, shared.size() == 1 ? "" : "s", number_list(shared),
          idle.size() == 1 ? "" : "s", number_list(idle), idle.size() == 1 ? "is" : "are");
      finding.ranks = {node[i]->rank, node[j]->rank};
    }
  if (pairs == 0) return;
  if (pairs > 1) finding.text += fmt::format(" (and {} more pairs)", pairs - 1);
  finding.text +=
      ": give each rank its own cores (srun --cpu-bind, mpirun --bind-to core) or start it with "
      "kintsugi launch";
  finding.mistake = true;
  findings.push_back(std::move(finding));
}

void judge_shared_gpus(const Node& node, Findings& findings) {
  std::map<std::string, int> owners;
  for (const RankFacts* rank : node) {
    if (rank->binding.gpu.empty()) continue;
    const auto [owner, first] = owners.emplace(rank->binding.gpu, rank->rank);
    if (first) continue;
    findings.push_back(
        {.severity = Severity::Error,
         .check = "binding",
         .text = fmt::format("ranks {} and {} on {} both use GPU {}: start as many ranks on a node "
                             "as it has GPUs, with gpu.device: auto",
                             owner->second, rank->rank, rank->node, rank->binding.gpu),
         .mistake = true,
         .ranks = {owner->second, rank->rank}});
    return;
  }
}

void judge_numa(const Node& node, Findings& findings) {
  for (const RankFacts* rank : node) {
    const BindingFacts& binding = rank->binding;
    if (binding.gpu_cores.empty() || !common(binding.cores, binding.gpu_cores).empty()) continue;
    findings.push_back(
        {.severity = Severity::Warning,
         .check = "binding",
         .text = fmt::format("rank {} on {} is bound to cores {}, but its GPU {} is near cores {}: "
                             "bind it to those",
                             rank->rank, rank->node, number_list(binding.cores), binding.gpu,
                             number_list(binding.gpu_cores)),
         .ranks = {rank->rank}});
  }
}

}  // namespace

bool oversubscribed(const std::vector<RankFacts>& ranks, const std::string& node) {
  Node members;
  for (const RankFacts& rank : ranks)
    if (rank.node == node) members.push_back(&rank);
  const auto cores = static_cast<int>(usable_cores(members).size());
  return cores > 0 && threads_of(members) > cores;
}

Findings judge_binding(const std::vector<RankFacts>& ranks, bool share_gpu) {
  Findings findings;
  const NodeGroups groups(nodes_of(ranks));
  int unbound_nodes = 0;
  std::string unbound_node;
  for (const std::vector<int>& members : groups.ranks) {
    Node node;
    for (const int rank : members) node.push_back(&ranks[static_cast<std::size_t>(rank)]);
    judge_shared_cores(node, findings);
    if (!share_gpu) judge_shared_gpus(node, findings);
    judge_numa(node, findings);
    const int cores = static_cast<int>(usable_cores(node).size()), threads = threads_of(node);
    if (cores > 0 && threads > cores)
      findings.push_back(
          {Severity::Warning, "binding",
           fmt::format(
               "{}: {} ranks with {} threads on {} cores; set threads, or start fewer ranks",
               node.front()->node, node.size(), threads, cores)});
    const bool free = std::any_of(node.begin(), node.end(),
                                  [](const RankFacts* rank) { return !rank->binding.bound(); });
    if (node.size() > 1 && free && ++unbound_nodes == 1) unbound_node = node.front()->node;
  }
  if (unbound_nodes > 0)
    findings.push_back(
        {.severity = Severity::Note,
         .check = "binding",
         .text = fmt::format(
             "ranks on {}{} are not bound to cores", unbound_node,
             unbound_nodes == 1 ? "" : fmt::format(" and {} more nodes", unbound_nodes - 1))});
  return findings;
}

}  // namespace kintsugi
