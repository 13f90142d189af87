#include "launch/doctor/facts.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "launch/topology.h"

namespace kintsugi {

constexpr int kMostCores = 1 << 16;

// The names of the fields are the keys.
static void to_json(nlohmann::json& json, const BindingFacts& facts) {
  json = {{"cores", number_list(facts.cores)},
          {"usable", number_list(facts.usable)},
          {"threads", facts.threads},
          {"gpu", facts.gpu},
          {"gpu_cores", number_list(facts.gpu_cores)}};
}
static void from_json(const nlohmann::json& json, BindingFacts& facts) {
  facts = {.cores = parse_number_list(json.at("cores")),
           .usable = parse_number_list(json.at("usable")),
           .threads = json.at("threads"),
           .gpu = json.at("gpu"),
           .gpu_cores = parse_number_list(json.at("gpu_cores"))};
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceFacts, name, problem, hash, free_bytes, flops_per_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PairRate, first, second, between_nodes, bytes_per_s, wrong)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DirectoryFacts, checked, problem, sees_first, free_bytes,
                                   write_bytes_per_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostFacts, clock_offset_s, wall_clock_s, shared_memory_free,
                                   old_shared_memory, open_files)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AmdGpu, pci, name, target, compute_units, module)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AmdLibrary, name, problem)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AmdFacts, usable, hidden, gpus, driver_problem, rocm, libraries)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, node, binding, device, pairs, directory, host,
                                   amd)

std::string to_json_text(const RankFacts& facts) {
  RankFacts copy = facts;
  // Names and system messages may be any bytes, but JSON is UTF-8.
  for (std::string* text : {&copy.node, &copy.binding.gpu, &copy.device.name, &copy.device.problem,
                            &copy.directory.problem, &copy.amd.hidden, &copy.amd.driver_problem})
    *text = printable(*text);
  for (AmdGpu& gpu : copy.amd.gpus) gpu.name = printable(gpu.name);
  for (AmdLibrary& library : copy.amd.libraries) library.problem = printable(library.problem);
  return nlohmann::json(copy).dump();
}

RankFacts facts_of(const std::string& json_text) {
  return nlohmann::json::parse(json_text).get<RankFacts>();
}

std::string number_list(const std::vector<int>& numbers) {
  return to_ranges(CpuSet(numbers.begin(), numbers.end()));
}

std::vector<int> parse_number_list(const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.c_str();
  while (*at >= '0' && *at <= '9') {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    if (first > last || last >= kMostCores) return {};
    for (long number = first; number <= last; ++number) numbers.push_back(static_cast<int>(number));
    at = *end == ',' ? end + 1 : end;
  }
  if (*at != '\0' && *at != '\n') return {};
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

NodeGroups::NodeGroups(const std::vector<std::string>& node_of_rank) {
  std::map<std::string, int> numbers;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto [found, added] = numbers.emplace(node_of_rank[rank], static_cast<int>(names.size()));
    if (added) {
      names.push_back(node_of_rank[rank]);
      ranks.emplace_back();
    }
    std::vector<int>& members = ranks[static_cast<std::size_t>(found->second)];
    node.push_back(found->second);
    local.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
}

std::vector<std::string> nodes_of(const std::vector<RankFacts>& ranks) {
  std::vector<std::string> nodes;
  nodes.reserve(ranks.size());
  for (const RankFacts& rank : ranks) nodes.push_back(rank.node);
  return nodes;
}

std::vector<std::vector<std::pair<int, int>>> ring_rounds(int n) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int first : {0, 1}) {
    std::vector<std::pair<int, int>> round;
    for (int i = first; i + 1 < n; i += 2) round.emplace_back(i, i + 1);
    if (!round.empty()) rounds.push_back(std::move(round));
  }
  if (n > 2 && n % 2 == 0) rounds[1].emplace_back(0, n - 1);  // closes the ring
  if (n > 2 && n % 2 == 1) rounds.push_back({{0, n - 1}});
  return rounds;
}

}  // namespace kintsugi
