#include "energy/shared_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "energy/small_file.h"

namespace kintsugi {
namespace {

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

}  // namespace

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

}  // namespace kintsugi
