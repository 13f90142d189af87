#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "core/units.h"
#include "launch/doctor/judge.h"

namespace kintsugi {
namespace {

constexpr std::string_view kTargets[] = {"gfx90a", "gfx942"};  // that kernels are compiled for
constexpr std::pair<long, long> kOldestRocm = {5, 2};

// What to do where a library cannot be opened.
std::string advice_for(const std::string& library) {
  if (library == "libamdhip64")
    return "no GPU is found without it: load ROCm (module load rocm), or add its lib directory to "
           "LD_LIBRARY_PATH";
  if (library == "libhipblaslt")
    return "matmuls use rocBLAS alone, and are slower: install hipBLASLt of this ROCm";
  if (library == "librocblas")
    return "matmuls that hipBLASLt does not have fail without it: install rocBLAS of this ROCm";
  if (library == "librccl")
    return "GPUs cannot train together without it: install RCCL of this ROCm";
  return "RCCL uses TCP between nodes without this plug-in: load it (module rccl-net-plugin), or "
         "set NCCL_NET_PLUGIN to the librccl-net.so of aws-ofi-nccl 1.19.2 or newer";
}

bool older(const std::string& version, std::pair<long, long> oldest) {
  char* end = nullptr;
  const long major = std::strtol(version.c_str(), &end, 10);
  if (end == version.c_str() || *end != '.') return end != version.c_str() && major < oldest.first;
  return std::pair(major, std::strtol(end + 1, nullptr, 10)) < oldest;
}

int modules_of(const std::vector<AmdGpu>& gpus) {
  std::set<int> modules;
  for (const AmdGpu& gpu : gpus) modules.insert(gpu.module);
  return static_cast<int>(modules.size());
}

// "8 GCDs of 4 MI250X modules, gfx90a, 110 compute units each".
std::string description_of(const std::vector<AmdGpu>& gpus) {
  std::map<std::string, std::vector<AmdGpu>> kinds;
  for (const AmdGpu& gpu : gpus) kinds[gpu.name].push_back(gpu);
  std::string text;
  for (const auto& [name, members] : kinds) {
    const int modules = modules_of(members);
    const auto count = static_cast<std::int64_t>(members.size());
    text += text.empty() ? "" : "; ";
    text += modules < count ? fmt::format("{} of {} {} {}", format_number(count, "GCD"), modules,
                                          name, modules == 1 ? "module" : "modules")
                            : fmt::format("{} {}", count, name);
    std::set<std::string> details;
    for (const AmdGpu& gpu : members)
      if (!gpu.target.empty())
        details.insert(fmt::format("{}, {} compute units each", gpu.target, gpu.compute_units));
    for (const std::string& detail : details) text += ", " + detail;
  }
  return text;
}

std::string libraries_of(const AmdFacts& facts) {
  std::vector<std::string> open;
  for (const AmdLibrary& library : facts.libraries)
    if (library.problem.empty()) open.push_back(library.name);
  return open.empty() ? "" : fmt::format("; opens {}", fmt::join(open, ", "));
}

// Findings that many nodes have in common are one line. Nodes are added one after the other.
class NodeFindings {
 public:
  void add(Severity severity, const std::string& node, const std::string& text) {
    for (Line& line : lines_)
      if (line.severity == severity && line.text == text) {
        line.others += line.last == node ? 0 : 1;
        line.last = node;
        return;
      }
    lines_.push_back({severity, text, node, node});
  }
  Findings all() const {
    Findings findings;
    for (const Line& line : lines_)
      findings.push_back(
          {line.severity, "amd",
           fmt::format("{}{}: {}", line.first,
                       line.others > 0 ? " and " + format_number(line.others, "more node") : "",
                       line.text)});
    return findings;
  }

 private:
  struct Line {
    Severity severity;
    std::string text, first, last;  // the first and the last node that has it
    std::int64_t others = 0;        // than the first
  };
  std::vector<Line> lines_;
};

void judge_targets(const std::string& node, const std::vector<AmdGpu>& gpus,
                   NodeFindings& findings) {
  std::set<std::string> unknown;
  for (const AmdGpu& gpu : gpus)
    if (!gpu.target.empty() &&
        std::find(std::begin(kTargets), std::end(kTargets), gpu.target) == std::end(kTargets))
      unknown.insert(fmt::format("{} ({})", gpu.target, gpu.name));
  for (const std::string& target : unknown)
    findings.add(Severity::Warning, node,
                 fmt::format("this program has no code for {}, only for {}: it cannot use these "
                             "GPUs",
                             target, fmt::join(kTargets, " and ")));
}

void judge_rocm(const std::string& node, const AmdFacts& facts, bool several_nodes,
                NodeFindings& findings) {
  if (older(facts.rocm, kOldestRocm))
    findings.add(Severity::Warning, node,
                 fmt::format("ROCm {} is older than {}.{}: load a newer one", facts.rocm,
                             kOldestRocm.first, kOldestRocm.second));
  if (!facts.driver_problem.empty())
    findings.add(Severity::Warning, node, "no process can use the GPUs: " + facts.driver_problem);
  for (const AmdLibrary& library : facts.libraries) {
    if (library.problem.empty()) continue;
    const bool matters = library.name != "librccl-net" || several_nodes;
    findings.add(matters ? Severity::Warning : Severity::Note, node,
                 fmt::format("{}; {}", library.problem, advice_for(library.name)));
  }
}

// A rank that uses one GCD of a module wastes the other, unless another rank uses it.
void judge_idle_dies(const std::vector<const RankFacts*>& ranks, bool one_rank,
                     NodeFindings& findings) {
  std::set<std::string> used;
  std::set<int> usable, modules_in_use;
  for (const RankFacts* rank : ranks) {
    used.insert(rank->binding.gpu);
    usable.insert(rank->amd.usable.begin(), rank->amd.usable.end());
  }
  const std::vector<AmdGpu>& gpus = ranks.front()->amd.gpus;
  for (const AmdGpu& gpu : gpus)
    if (used.contains(gpu.pci)) modules_in_use.insert(gpu.module);
  std::vector<std::string> idle;
  for (std::size_t i = 0; i < gpus.size(); ++i)
    if (usable.contains(static_cast<int>(i)) && !used.contains(gpus[i].pci) &&
        modules_in_use.contains(gpus[i].module))
      idle.push_back(gpus[i].pci);
  if (idle.empty()) return;
  findings.add(
      one_rank ? Severity::Note : Severity::Warning, ranks.front()->node,
      fmt::format("no rank uses {} {}, though one uses the other GCD of the module: start "
                  "one rank per GCD, {} on a node",
                  idle.size() == 1 ? "GCD" : "GCDs", fmt::join(idle, ", "), usable.size()));
}

}  // namespace

Findings judge_amd(const std::vector<RankFacts>& ranks, const std::string& undriven) {
  NodeFindings findings;
  const NodeGroups groups(nodes_of(ranks));
  for (const std::vector<int>& members : groups.ranks) {
    std::vector<const RankFacts*> node;
    for (const int rank : members) node.push_back(&ranks[static_cast<std::size_t>(rank)]);
    const AmdFacts& facts = node.front()->amd;
    const std::string& name = node.front()->node;
    if (facts.gpus.empty()) continue;
    findings.add(
        Severity::Note, name,
        fmt::format("{}{}{}", description_of(facts.gpus),
                    facts.rocm.empty() ? "" : "; ROCm " + facts.rocm, libraries_of(facts)));
    if (undriven.empty())
      judge_targets(name, facts.gpus, findings);
    else
      findings.add(Severity::Warning, name, "this program cannot use the GPUs: " + undriven);
    judge_rocm(name, facts, groups.names.size() > 1, findings);
    for (const RankFacts* rank : node)
      if (!rank->amd.hidden.empty()) findings.add(Severity::Warning, name, rank->amd.hidden);
    judge_idle_dies(node, ranks.size() == 1, findings);
  }
  return findings.all();
}

}  // namespace kintsugi
