#include "launch/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr int kMostCpus = 1 << 14;

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

int parse_cpu(std::string_view text, const std::string& whole) {
  int value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size() ||
      value < 0 || value >= kMostCpus)
    user_error("'{}' is no list of numbers below {}, such as 0-7,9", whole, kMostCpus);
  return value;
}

// "word rest" -> rest, if the text starts with the word.
std::optional<std::string> after_word(const std::string& text, std::string_view word) {
  if (!text.starts_with(word) || text.size() == word.size() || text[word.size()] != ' ') return {};
  return trimmed(text.substr(word.size()));
}

NumaDomain parse_domain(const std::string& line) {
  const std::size_t colon = line.find(':');
  const auto number = after_word(trimmed(line.substr(0, colon)), "numa");
  if (colon == std::string::npos || !number)
    user_error("a line such as 'numa 0: cores 0-15; threads 64-79; gpus 4,5' is expected");
  NumaDomain domain{.number = parse_cpu(*number, *number)};
  CpuSet cores, threads;
  std::istringstream parts(line.substr(colon + 1));
  for (std::string part; std::getline(parts, part, ';');) {
    part = trimmed(part);
    if (const auto list = after_word(part, "cores"))
      cores = parse_ranges(*list);
    else if (const auto more = after_word(part, "threads"))
      threads = parse_ranges(*more);
    else if (const auto gpus = after_word(part, "gpus"))
      domain.gpus = parse_ranges(*gpus);
    else
      user_error("'{}' is not cores, threads or gpus with their numbers", part);
  }
  if (cores.empty()) user_error("the domain has no cores");
  if (threads.size() % cores.size() != 0)
    user_error("{} threads do not divide among {} cores", threads.size(), cores.size());
  for (const int core : cores) domain.core_of[core] = core;
  const std::vector<int> in_order(cores.begin(), cores.end());
  std::size_t next = 0;
  for (const int thread : threads)
    if (!domain.core_of.emplace(thread, in_order[next++ % in_order.size()]).second)
      user_error("{} is listed as a core and as a thread", thread);
  return domain;
}

void check_domains(const Topology& topology) {
  CpuSet cpus, gpus, numbers;
  for (const NumaDomain& domain : topology.domains) {
    if (!numbers.insert(domain.number).second)
      user_error("NUMA domain {} is listed twice", domain.number);
    for (const auto& [cpu, core] : domain.core_of)
      if (!cpus.insert(cpu).second) user_error("CPU {} is in two NUMA domains", cpu);
    for (const int gpu : domain.gpus)
      if (!gpus.insert(gpu).second) user_error("GPU {} is in two NUMA domains", gpu);
  }
  if (!gpus.empty() && *gpus.rbegin() + 1 != static_cast<int>(gpus.size()))
    user_error("the GPUs are {}: their numbers must be 0 to {}", to_ranges(gpus), gpus.size() - 1);
}

}  // namespace

std::string to_ranges(const CpuSet& cpus) {
  std::string text;
  for (auto it = cpus.begin(); it != cpus.end();) {
    const int first = *it;
    int last = first;
    while (++it != cpus.end() && *it == last + 1) last = *it;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

CpuSet parse_ranges(const std::string& text) {
  CpuSet cpus;
  std::string list = text;
  std::replace(list.begin(), list.end(), ' ', ',');
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    if (item.empty()) continue;
    const std::size_t dash = item.find('-');
    const std::string_view view = item;
    const int first = parse_cpu(view.substr(0, dash), text);
    const int last = dash == std::string::npos ? first : parse_cpu(view.substr(dash + 1), text);
    if (last < first) user_error("'{}' counts backward in '{}'", item, text);
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  if (cpus.empty()) user_error("'{}' is no list of numbers, such as 0-7,9", text);
  return cpus;
}

std::string to_mask(const CpuSet& cpus) {
  if (cpus.empty()) return "0x0";
  const int digits = *cpus.rbegin() / 4 + 1;
  std::vector<int> values(static_cast<std::size_t>(digits), 0);
  for (const int cpu : cpus) values[static_cast<std::size_t>(digits - 1 - cpu / 4)] |= 1 << cpu % 4;
  std::string text = "0x";
  for (const int value : values) text += "0123456789abcdef"[value];
  return text;
}

CpuSet parse_mask(const std::string& text) {
  const std::string digits =
      text.starts_with("0x") || text.starts_with("0X") ? text.substr(2) : text;
  if (digits.empty() || digits.size() > kMostCpus / 4)
    user_error("'{}' is no CPU mask, such as 0xfe00", text);
  CpuSet cpus;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const char* const digit = &digits[digits.size() - 1 - i];
    int value = 0;
    if (std::from_chars(digit, digit + 1, value, 16).ec != std::errc())
      user_error("'{}' is no CPU mask, such as 0xfe00", text);
    for (int bit = 0; bit < 4; ++bit)
      if ((value >> bit & 1) != 0) cpus.insert(static_cast<int>(i) * 4 + bit);
  }
  return cpus;
}

CpuSet NumaDomain::cores() const {
  CpuSet cores;
  for (const auto& [cpu, core] : core_of) cores.insert(core);
  return cores;
}

CpuSet Topology::cores() const {
  CpuSet all;
  for (const NumaDomain& domain : domains) all.merge(domain.cores());
  return all;
}

CpuSet Topology::cores_of(const CpuSet& cpus) const {
  CpuSet cores;
  for (const NumaDomain& domain : domains)
    for (const auto& [cpu, core] : domain.core_of)
      if (cpus.contains(cpu)) cores.insert(core);
  return cores;
}

bool Topology::has_cpu(int cpu) const {
  return std::any_of(domains.begin(), domains.end(),
                     [&](const NumaDomain& domain) { return domain.core_of.contains(cpu); });
}

const NumaDomain* Topology::with_gpu(int gpu) const {
  for (const NumaDomain& domain : domains)
    if (domain.gpus.contains(gpu)) return &domain;
  return nullptr;
}

int Topology::gpus() const {
  std::size_t count = 0;
  for (const NumaDomain& domain : domains) count += domain.gpus.size();
  return static_cast<int>(count);
}

Topology parse_topology(const std::vector<std::string>& lines, const std::string& source) {
  Topology topology;
  for (const std::string& line : lines) {
    try {
      topology.domains.push_back(parse_domain(line));
    } catch (const UserError& error) {
      user_error("{}: topology '{}': {}", source, line, error.what());
    }
  }
  try {
    if (topology.domains.empty()) user_error("it has no NUMA domain");
    check_domains(topology);
  } catch (const UserError& error) {
    user_error("{}: topology: {}", source, error.what());
  }
  std::sort(topology.domains.begin(), topology.domains.end(),
            [](const NumaDomain& a, const NumaDomain& b) { return a.number < b.number; });
  return topology;
}

std::vector<std::string> to_lines(const Topology& topology) {
  std::vector<std::string> lines;
  for (const NumaDomain& domain : topology.domains) {
    CpuSet threads;
    for (const auto& [cpu, core] : domain.core_of)
      if (cpu != core) threads.insert(cpu);
    std::string line = fmt::format("numa {}: cores {}", domain.number, to_ranges(domain.cores()));
    if (!threads.empty()) line += "; threads " + to_ranges(threads);
    if (!domain.gpus.empty()) line += "; gpus " + to_ranges(domain.gpus);
    lines.push_back(line);
  }
  return lines;
}

Topology load_topology(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  if (trimmed(text.substr(0, text.find('\n'))).starts_with('<')) return read_hwloc_xml(file);
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    line = trimmed(line.substr(0, line.find('#')));
    if (!line.empty()) lines.push_back(line);
  }
  return parse_topology(lines, file.string());
}

// ---- binding

namespace {

constexpr std::string_view kMaskPrefix = "mask_cpu:";
constexpr std::size_t kMostRanks = 4096;  // per node

CpuSet without(const CpuSet& cpus, const CpuSet& removed) {
  CpuSet rest;
  std::set_difference(cpus.begin(), cpus.end(), removed.begin(), removed.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

CpuSet common(const CpuSet& a, const CpuSet& b) {
  CpuSet both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  return both;
}

std::string cores_text(const CpuSet& cores) {
  return fmt::format("{} {}", cores.size() == 1 ? "core" : "cores", to_ranges(cores));
}

// Gives each of `ranks` the same number of cores, in order; cores that are left over stay idle.
void divide(const CpuSet& cores, const std::vector<int>& ranks, RankCpus& cpus) {
  const std::size_t each = cores.size() / ranks.size();
  if (each == 0)
    user_error("{} for {}: start fewer ranks per node",
               format_number(static_cast<std::int64_t>(cores.size()), "core"),
               format_number(static_cast<std::int64_t>(ranks.size()), "rank"));
  auto next = cores.begin();
  for (const int rank : ranks)
    for (std::size_t i = 0; i < each; ++i) cpus[static_cast<std::size_t>(rank)].insert(*next++);
}

void check_numa(int rank, const CpuSet& cores, const Topology& topology,
                const std::string& source) {
  const NumaDomain* domain = topology.with_gpu(rank);
  if (domain == nullptr) return;
  const CpuSet far = without(cores, domain->cores());
  if (far.empty()) return;
  for (const NumaDomain& other : topology.domains)
    if (const CpuSet there = common(far, other.cores()); !there.empty())
      user_error("{}: rank {} has {} of NUMA domain {}, but its GPU is in domain {} ({})", source,
                 rank, cores_text(there), other.number, domain->number,
                 cores_text(domain->cores()));
}

}  // namespace

RankCpus bind_ranks(const Topology& topology, const CpuSet& reserved, int ranks) {
  RankCpus cpus(static_cast<std::size_t>(ranks));
  if (topology.gpus() == 0) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    divide(without(topology.cores(), reserved), all, cpus);
    return cpus;
  }
  if (ranks > topology.gpus())
    user_error("{} ranks per node, but the topology has {}", ranks,
               format_number(topology.gpus(), "GPU"));
  for (const NumaDomain& domain : topology.domains) {
    std::vector<int> here;
    for (const int gpu : domain.gpus)
      if (gpu < ranks) here.push_back(gpu);
    if (!here.empty()) divide(without(domain.cores(), reserved), here, cpus);
  }
  return cpus;
}

std::string to_cpu_bind(const RankCpus& cpus) {
  std::string text(kMaskPrefix);
  for (std::size_t i = 0; i < cpus.size(); ++i) text += (i > 0 ? "," : "") + to_mask(cpus[i]);
  return text;
}

RankCpus parse_cpu_bind(const std::string& text) {
  if (!text.starts_with(kMaskPrefix))
    user_error("'{}': give one mask per rank of a node, such as mask_cpu:0xfe,0xfe00", text);
  RankCpus cpus;
  std::istringstream masks(text.substr(kMaskPrefix.size()));
  for (std::string mask; std::getline(masks, mask, ',');) {
    if (cpus.size() == kMostRanks) user_error("more than {} masks", kMostRanks);
    cpus.push_back(parse_mask(mask));
  }
  return cpus;
}

void check_masks(const RankCpus& cpus, const Topology& topology, const CpuSet& reserved, int ranks,
                 const std::string& source) {
  if (cpus.size() != static_cast<std::size_t>(ranks))
    user_error("{} has {} for {} per node", source,
               format_number(static_cast<std::int64_t>(cpus.size()), "mask"),
               format_number(ranks, "rank"));
  std::vector<CpuSet> cores;
  for (int rank = 0; rank < ranks; ++rank) {
    const CpuSet& mine = cpus[static_cast<std::size_t>(rank)];
    if (mine.empty()) user_error("{}: the mask of rank {} is empty", source, rank);
    CpuSet missing;
    std::copy_if(mine.begin(), mine.end(), std::inserter(missing, missing.end()),
                 [&](int cpu) { return !topology.has_cpu(cpu); });
    if (!missing.empty())
      user_error("{}: rank {} has CPUs {}, which the node does not have", source, rank,
                 to_ranges(missing));
    cores.push_back(topology.cores_of(mine));
    if (const CpuSet taken = common(cores.back(), reserved); !taken.empty())
      user_error("{}: rank {} has {}, reserved for the system", source, rank, cores_text(taken));
  }
  for (int a = 0; a < ranks; ++a)
    for (int b = a + 1; b < ranks; ++b)
      if (const CpuSet both =
              common(cores[static_cast<std::size_t>(a)], cores[static_cast<std::size_t>(b)]);
          !both.empty())
        user_error("{}: ranks {} and {} share {}", source, a, b, cores_text(both));
  for (int rank = 0; rank < ranks; ++rank)
    check_numa(rank, cores[static_cast<std::size_t>(rank)], topology, source);
}

}  // namespace kintsugi
