#include "energy/meters/find_meters.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "energy/meters/sysfs.h"

namespace kintsugi {
namespace {

class ConstantPower : public Meter {
 public:
  ConstantPower(MeterIdentity identity, double watts) : Meter(std::move(identity)), watts_(watts) {}
  MeterReading read() override { return {.watts = watts_}; }

 private:
  double watts_;
};

// The watts that the user gave for the whole node.
void add_estimate(const MeterSearch& search, FoundMeters& found) {
  if (!(search.node_w > 0))
    return found.missing.push_back(
        {"estimate", "no watts are given for a node (energy.node_w, kintsugi energy --node-w)"});
  found.meters.push_back(std::make_unique<ConstantPower>(
      MeterIdentity{.source = "estimate",
                    .scope = "node",
                    .level = EnergyLevel::Node,
                    .kind = MeterKind::Estimate,
                    .detail = fmt::format("{:g} W per node, as given", search.node_w)},
      search.node_w));
}

using AddMeters = void (*)(const MeterSearch&, FoundMeters&);
struct MeterSource {
  const char* name;
  AddMeters add;
  AddMeters otherwise = nullptr;  // also called; it looks at what `add` has found
  bool only_gpus = false;
};
// The order of the meters in a list; choose_meters decides which of them are used.
constexpr MeterSource kMeterSources[] = {
    {"pm_counters", add_pm_counters},             //
    {"nvml", add_nvml, nullptr, true},            //
    {"amdsmi", add_amdsmi, add_amd_sysfs, true},  // the files only without the library
    {"rapl", add_rapl},                           //
    {"hwmon", add_hwmon},                         //
    {"ear", add_ear},                             //
    {"slurm", add_slurm},                         //
    {"estimate", add_estimate},                   //
};

// One source in a thread of its own: a library may never answer.
struct SourceSearch {
  std::mutex mutex = {};
  std::condition_variable changed = {};
  bool done = false;
  FoundMeters found = {};
};

FoundMeters search_source(const MeterSource& source, const MeterSearch& search) {
  FoundMeters found;
  if (source.only_gpus && search.without_gpus()) {
    found.missing.push_back({source.name, kNoGpuInUse});
    return found;
  }
  for (const AddMeters add : {source.add, source.otherwise}) try {
      if (add != nullptr) add(search, found);
    } catch (const std::exception& error) {
      found.missing.push_back({source.name, error.what()});
    }
  return found;
}

std::shared_ptr<SourceSearch> start_search(const MeterSource& source, const MeterSearch& search) {
  auto state = std::make_shared<SourceSearch>();
  std::thread([state, &source, search] {
    FoundMeters found = search_source(source, search);
    const std::lock_guard lock(state->mutex);
    state->found = std::move(found);
    state->done = true;
    state->changed.notify_all();
  }).detach();
  return state;
}

constexpr std::int64_t kMostNodes = 1'000'000, kMostCpus = 1'000'000;

// A whole node may have up to this part of its cores reserved for the system: low-noise mode of
// LUMI-G and Frontier reserves 8 of 64, one of each eight.
constexpr std::int64_t kReserved = 8;

bool nearly_all(std::int64_t some, std::int64_t all) { return some >= all - all / kReserved; }

// Of the CPUs that are online: CPUs of one core name the same list.
std::int64_t count_cores(const std::filesystem::path& cpus) {
  std::set<std::string> cores;
  for (const std::string& name : names_in(cpus)) {
    if (!number_in(name, "cpu")) continue;
    const std::filesystem::path topology = cpus / name / "topology";
    std::string siblings = read_small_file(topology / "core_cpus_list").text;
    if (siblings.empty()) siblings = read_small_file(topology / "thread_siblings_list").text;
    if (!siblings.empty()) cores.insert(std::move(siblings));
  }
  return static_cast<std::int64_t>(cores.size());
}

// Calls visit(word) with each word between commas; stops and returns false when it does.
template <class Visit>
bool all_words(std::string_view text, Visit&& visit) {
  while (true) {
    const std::size_t comma = text.find(',');
    if (!visit(text.substr(0, comma))) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

std::int64_t whole_variable(const Environment& environment, const std::string& name,
                            std::int64_t unknown) {
  const std::optional<std::string> text = environment(name);
  return text ? parse_whole(*text).value_or(unknown) : unknown;
}

// Of this node. The list has the order of the job's nodes, and SLURM_NODEID that of the step's.
std::int64_t job_cpus_here(const Environment& environment) {
  const std::vector<std::int64_t> list =
      cpus_per_node(environment("SLURM_JOB_CPUS_PER_NODE").value_or(""));
  if (list.empty()) return whole_variable(environment, "SLURM_CPUS_ON_NODE", 0);
  const auto nodes = static_cast<std::int64_t>(list.size());
  const std::int64_t node = whole_variable(environment, "SLURM_NODEID", -1);
  if (whole_variable(environment, "SLURM_NNODES", -1) == nodes && node >= 0 && node < nodes)
    return list[static_cast<std::size_t>(node)];
  return *std::min_element(list.begin(), list.end());
}

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
  return scope.starts_with(to_string(level)) ||
         (level == EnergyLevel::Cpu && scope.starts_with("package"));
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

FoundMeters::Missing second_die(const std::string& scope, std::optional<std::size_t> first,
                                const std::string& first_pci) {
  return {"amdsmi",
          first ? fmt::format("second die of the module; its energy is in gpu{}", *first)
                : fmt::format("second die of the module; the first one ({}), which reports for "
                              "both, is not used",
                              first_pci.empty() ? "of unknown address" : first_pci),
          scope, first.has_value()};
}

void add_readable(std::unique_ptr<Meter> meter, FoundMeters& found) {
  try {
    meter->read();
    found.meters.push_back(std::move(meter));
  } catch (const Failure& error) {
    found.missing.push_back({meter->identity().source, error.what(), meter->identity().scope});
  }
}

FoundMeters find_meters(const MeterSearch& search, double limit_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  std::vector<std::shared_ptr<SourceSearch>> searches;
  for (const MeterSource& source : kMeterSources) searches.push_back(start_search(source, search));
  FoundMeters found;
  found.node_gpus = count_gpus(search.root);
  for (std::size_t i = 0; i < searches.size(); ++i) {
    SourceSearch& one = *searches[i];
    std::unique_lock lock(one.mutex);
    if (!one.changed.wait_until(lock, deadline, [&] { return one.done; })) {
      found.missing.push_back({kMeterSources[i].name, fmt::format("no answer in {:g} s", limit_s)});
      continue;
    }
    std::ranges::move(one.found.meters, std::back_inserter(found.meters));
    std::ranges::move(one.found.missing, std::back_inserter(found.missing));
  }
  return found;
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return {};
    return value;
  };
}

bool NodeShare::shared() const {
  if (job_cpus <= 0 || node_cpus <= 0 || nearly_all(job_cpus, node_cpus)) return false;
  // With one thread per core a job has as many CPUs as the node has cores.
  return node_cores <= 0 || job_cpus > node_cores || !nearly_all(job_cpus, node_cores);
}

std::string NodeShare::reason() const {
  if (!shared()) return "";
  return fmt::format(
      "the job has {} of {} CPUs of this node: its counters include other jobs; ask for the whole "
      "node (sbatch --exclusive)",
      job_cpus, node_cpus);
}

NodeShare find_node_share(const std::filesystem::path& root, const Environment& environment) {
  const std::filesystem::path cpus = root / "sys/devices/system/cpu";
  return {.job_cpus = job_cpus_here(environment),
          .node_cpus = count_cpus(read_small_file(cpus / "online").text),
          .node_cores = count_cores(cpus)};
}

std::vector<std::int64_t> cpus_per_node(std::string_view text) {
  std::vector<std::int64_t> cpus;
  const bool valid = all_words(text, [&](std::string_view word) {
    std::int64_t nodes = 1;
    if (const std::size_t bracket = word.find("(x"); bracket != std::string_view::npos) {
      nodes = number_in(word.substr(bracket), "(x", ")").value_or(0);
      word = word.substr(0, bracket);
    }
    const std::int64_t count = parse_whole(word).value_or(0);
    if (count < 1 || count > kMostCpus || nodes < 1 ||
        nodes > kMostNodes - static_cast<std::int64_t>(cpus.size()))
      return false;
    cpus.insert(cpus.end(), static_cast<std::size_t>(nodes), count);
    return true;
  });
  return valid ? cpus : std::vector<std::int64_t>();
}

std::int64_t count_cpus(std::string_view list) {
  std::int64_t count = 0;
  const bool valid = all_words(list, [&](std::string_view word) {
    const std::size_t dash = word.find('-');
    const auto first = parse_whole(word.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_whole(word.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= kMostCpus) return false;
    count += *last - *first + 1;
    return count <= kMostCpus;
  });
  return valid ? count : 0;
}

ChosenMeters choose_meters(const FoundMeters& found, const MeterSearch& search,
                           const NodeShare& share) {
  ChosenMeters chosen;
  for (const EnergyLevel level : kEnergyLevels)
    chosen[level] = choose_level(found, search, share, level);
  return chosen;
}

}  // namespace kintsugi
