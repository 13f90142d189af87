#include "launch/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
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
