#include "energy/choose_meters.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "energy/pci.h"

namespace kintsugi {
namespace {

// The best source first, among those of the same kind.
constexpr std::string_view kSourceOrder[] = {"pm_counters", "nvml",  "amdsmi", "rapl",
                                             "ear",         "hwmon", "slurm",  "estimate"};

struct Candidate {
  MeterKind kind = MeterKind::Counter;
  LevelMeters level = {};

  auto rank() const {
    const auto at = std::find(std::begin(kSourceOrder), std::end(kSourceOrder), level.source);
    return std::tuple(!level.uncovered.empty(), kind, at - std::begin(kSourceOrder));
  }
};

bool belongs_to(const std::string& scope, EnergyLevel level) {
  switch (level) {
    case EnergyLevel::Gpu:
      return scope.starts_with("gpu");
    case EnergyLevel::Cpu:
      return scope == "cpu" || scope.starts_with("package");
    case EnergyLevel::Memory:
      return scope.starts_with("memory");
    case EnergyLevel::Node:
      return scope == "node";
  }
  return false;
}

// pm_counters numbers the modules of the node, and does not know which of them a run uses.
bool uses_all_gpus(const FoundMeters& found, const MeterSearch& search, std::size_t modules) {
  if (!search.gpus) return true;
  std::set<std::string> used;
  for (const std::string& gpu : *search.gpus) used.insert(pci_address(gpu));
  return used.size() >= (found.node_gpus > 0 ? static_cast<std::size_t>(found.node_gpus) : modules);
}

// Each scope once; "cpu" instead of its packages.
std::vector<std::size_t> without_doubles(const FoundMeters& found,
                                         const std::vector<std::size_t>& meters,
                                         EnergyLevel level) {
  std::set<std::string> scopes;
  std::vector<std::size_t> kept;
  for (const std::size_t i : meters)
    if (scopes.insert(found.meters[i]->identity().scope).second) kept.push_back(i);
  const std::string whole(to_string(level));
  if (scopes.contains(whole))
    std::erase_if(kept, [&](std::size_t i) { return found.meters[i]->identity().scope != whole; });
  return kept;
}

std::string uncovered_by(const FoundMeters& found, const MeterSearch& search,
                         const LevelMeters& chosen, EnergyLevel level) {
  std::set<std::string> scopes, absent;
  for (const std::size_t i : chosen.meters) scopes.insert(found.meters[i]->identity().scope);
  if (scopes.contains(std::string(to_string(level)))) return "";
  std::string text;
  for (const FoundMeters::Missing& missing : found.missing) {
    if (missing.source != chosen.source || !belongs_to(missing.scope, level) ||
        scopes.contains(missing.scope) || !absent.insert(missing.scope).second || missing.counted)
      continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", missing.scope, missing.reason);
  }
  if (level != EnergyLevel::Gpu || chosen.source == "pm_counters" || !search.gpus) return text;
  for (std::size_t i = 0; i < search.gpus->size(); ++i) {
    const std::string scope = fmt::format("gpu{}", i);
    if (!scopes.contains(scope) && !absent.contains(scope))
      text +=
          fmt::format("{}{} ({}) has no meter", text.empty() ? "" : "; ", scope, (*search.gpus)[i]);
  }
  return text;
}

std::vector<Candidate> candidates_for(const FoundMeters& found, const MeterSearch& search,
                                      EnergyLevel level) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < found.meters.size(); ++i) {
    const MeterIdentity& meter = found.meters[i]->identity();
    if (meter.level != level) continue;
    auto at = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& one) {
      return one.level.source == meter.source && one.kind == meter.kind;
    });
    if (at == candidates.end())
      at = candidates.insert(at, {.kind = meter.kind, .level = {.source = meter.source}});
    at->level.meters.push_back(i);
  }
  for (Candidate& one : candidates) {
    one.level.meters = without_doubles(found, one.level.meters, level);
    one.level.uncovered = uncovered_by(found, search, one.level, level);
  }
  return candidates;
}

// Why no meter of the level was found.
std::string reason_for(const FoundMeters& found, EnergyLevel level) {
  std::string text;
  for (const FoundMeters::Missing& missing : found.missing)
    if (belongs_to(missing.scope, level) && !missing.counted)
      text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", missing.source, missing.scope,
                          missing.reason);
  constexpr std::string_view kWhat[] = {"the GPUs", "the CPUs", "the memory", "the whole node"};
  return text.empty() ? fmt::format("no meter of {} was found (kintsugi energy --list)",
                                    kWhat[static_cast<std::size_t>(level)])
                      : text;
}

LevelMeters choose_level(const FoundMeters& found, const MeterSearch& search,
                         const NodeShare& share, EnergyLevel level) {
  if (level != EnergyLevel::Gpu && share.shared()) return {.reason = share.reason()};
  if (level == EnergyLevel::Gpu && search.without_gpus()) return {.reason = kNoGpuInUse};
  std::vector<Candidate> candidates = candidates_for(found, search, level);
  std::string refused;
  if (level == EnergyLevel::Gpu)
    std::erase_if(candidates, [&](const Candidate& one) {
      if (one.level.source != "pm_counters" ||
          uses_all_gpus(found, search, one.level.meters.size()))
        return false;
      refused =
          "the run does not use all GPUs of the node, and pm_counters does not say which is "
          "which";
      return true;
    });
  const auto best =
      std::min_element(candidates.begin(), candidates.end(),
                       [](const Candidate& a, const Candidate& b) { return a.rank() < b.rank(); });
  if (best != candidates.end()) return best->level;
  return {.reason = refused.empty() ? reason_for(found, level) : refused};
}

}  // namespace

ChosenMeters choose_meters(const FoundMeters& found, const MeterSearch& search,
                           const NodeShare& share) {
  ChosenMeters chosen;
  for (const EnergyLevel level : kEnergyLevels)
    chosen.levels[static_cast<std::size_t>(level)] = choose_level(found, search, share, level);
  return chosen;
}

}  // namespace kintsugi
