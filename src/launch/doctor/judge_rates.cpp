#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/statistics.h"
#include "core/units.h"
#include "launch/doctor/judge.h"

namespace kintsugi {
namespace {

// With fewer values, the median says little about which one is wrong.
constexpr std::size_t kFewestRates = 3;

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", number_list(ranks));
}

std::string rate_text(double bytes_per_s) { return fmt::format("{:.3g} GB/s", bytes_per_s / 1e9); }

std::string flops_text(double flops_per_s) { return format_si(flops_per_s) + "FLOP/s"; }

// The ranks of each node whose value is below a limit, and the lowest value.
struct SlowRanks {
  std::vector<int> ranks;
  double lowest = 0;
};
using SlowNodes = std::map<std::string, SlowRanks>;

void add_slow(SlowNodes& nodes, const std::string& node, int rank, double value) {
  SlowRanks& slow = nodes[node];
  slow.lowest = slow.ranks.empty() ? value : std::min(slow.lowest, value);
  if (slow.ranks.empty() || slow.ranks.back() != rank) slow.ranks.push_back(rank);
}

std::set<std::string> busy_nodes(const std::vector<RankFacts>& ranks) {
  std::set<std::string> busy;
  for (const std::string& node : NodeGroups(nodes_of(ranks)).names)
    if (oversubscribed(ranks, node)) busy.insert(node);
  return busy;
}

// ---- devices

void judge_results(const std::vector<RankFacts>& ranks, Findings& findings) {
  std::map<std::string, int> hashes;
  for (const RankFacts& rank : ranks) {
    if (rank.device.problem.empty()) {
      if (!rank.device.hash.empty()) ++hashes[rank.device.hash];
      continue;
    }
    findings.push_back(
        {.severity = Severity::Error,
         .check = "device",
         .text = fmt::format("rank {} on {}: {}", rank.rank, rank.node, rank.device.problem),
         .nodes = {rank.node},
         .ranks = {rank.rank}});
  }
  if (hashes.size() < 2) return;
  const auto usual =
      std::max_element(hashes.begin(), hashes.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const RankFacts& rank : ranks)
    if (rank.device.problem.empty() && !rank.device.hash.empty() &&
        rank.device.hash != usual->first)
      findings.push_back(
          {Severity::Error,
           "device",
           fmt::format("rank {} on {}: its matmul gives other bits ({}) than that of {} ranks ({})",
                       rank.rank, rank.node, rank.device.hash, usual->second, usual->first),
           {rank.node}});
}

void judge_free_memory(const std::vector<RankFacts>& ranks, const DoctorLimits& limits,
                       Findings& findings) {
  std::vector<double> free;
  for (const RankFacts& rank : ranks)
    if (!rank.binding.gpu.empty() && rank.device.free_bytes > 0)
      free.push_back(rank.device.free_bytes);
  if (free.size() < 2) return;
  const double usual = median(free);
  for (const RankFacts& rank : ranks)
    if (!rank.binding.gpu.empty() && rank.device.free_bytes > 0 &&
        rank.device.free_bytes < limits.free_memory * usual)
      findings.push_back(
          {Severity::Warning, "device",
           fmt::format(
               "rank {} on {}: GPU {} has {} free, the others {}: does another process use it?",
               rank.rank, rank.node, rank.binding.gpu, format_bytes(rank.device.free_bytes),
               format_bytes(usual))});
}

void judge_compute_rates(const std::vector<RankFacts>& ranks, const DoctorLimits& limits,
                         const ExpectedRates& expected, Findings& findings) {
  const std::set<std::string> busy = busy_nodes(ranks);
  std::vector<double> rates;
  std::vector<const RankFacts*> compared;
  for (const RankFacts& rank : ranks) {
    if (rank.device.flops_per_s <= 0 || (rank.binding.gpu.empty() && busy.contains(rank.node)))
      continue;
    rates.push_back(rank.device.flops_per_s);
    compared.push_back(&rank);
  }
  if (rates.empty()) return;
  const double usual = median(rates);
  if (expected.flops_per_s > 0 && usual < limits.machine * expected.flops_per_s)
    findings.push_back({Severity::Warning, "device",
                        fmt::format("the median matmul rate is {}; the machine description says {}",
                                    flops_text(usual), flops_text(expected.flops_per_s))});
  if (rates.size() < kFewestRates) return;
  SlowNodes slow;
  for (const RankFacts* rank : compared)
    if (rank->device.flops_per_s < limits.slow * usual)
      add_slow(slow, rank->node, rank->rank, rank->device.flops_per_s);
  for (const auto& [node, found] : slow)
    findings.push_back(
        {.severity = found.lowest < limits.failed * usual ? Severity::Error : Severity::Warning,
         .check = "device",
         .text = fmt::format("{} on {}: slow matmul, {} ({:.0f} % of the median {})",
                             ranks_text(found.ranks), node, flops_text(found.lowest),
                             100 * found.lowest / usual, flops_text(usual)),
         .nodes = {node},
         .kind = NodeTrouble::Slow,
         .ranks = found.ranks});
}

// ---- links

// A slow rank has two slow pairs, which are the majority in a ring of three. So pairs are compared
// with the upper quartile instead of the median.
double upper_quartile(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  return rates[(3 * rates.size() + 3) / 4 - 1];
}

struct JudgedPair {
  PairRate pair;
  double usual = 0;  // of the pairs it is compared with; 0: too few
  bool slow = false;
};

// Links inside a node may differ by design, so each is compared with the same one of other nodes.
// With few nodes, all pairs of a node are compared.
std::vector<JudgedPair> compare_pairs(const std::vector<PairRate>& pairs, const NodeGroups& groups,
                                      const DoctorLimits& limits, bool equal_links) {
  const bool by_place = groups.names.size() >= kFewestRates || !equal_links;
  const auto place = [&](const PairRate& pair) {
    const int a = groups.local[static_cast<std::size_t>(pair.first)],
              b = groups.local[static_cast<std::size_t>(pair.second)];
    return pair.between_nodes || !by_place ? std::tuple(pair.between_nodes, 0, 0)
                                           : std::tuple(false, a, b);
  };
  std::map<std::tuple<bool, int, int>, std::vector<double>> rates;
  for (const PairRate& pair : pairs) rates[place(pair)].push_back(pair.bytes_per_s);
  std::vector<JudgedPair> judged;
  for (const PairRate& pair : pairs) {
    const std::vector<double>& others = rates[place(pair)];
    JudgedPair& one = judged.emplace_back(JudgedPair{.pair = pair});
    if (others.size() < kFewestRates) continue;
    one.usual = upper_quartile(others);
    one.slow = pair.bytes_per_s < limits.slow * one.usual;
  }
  return judged;
}

// Ranks with at least two pairs, all of them slow.
std::set<int> culprits(const std::vector<JudgedPair>& judged) {
  std::map<int, std::pair<int, int>> counts;  // pairs, slow pairs
  for (const JudgedPair& one : judged)
    for (const int rank : {one.pair.first, one.pair.second}) {
      ++counts[rank].first;
      counts[rank].second += one.slow ? 1 : 0;
    }
  std::set<int> found;
  for (const auto& [rank, count] : counts)
    if (count.first >= 2 && count.first == count.second) found.insert(rank);
  return found;
}

void judge_pairs(const std::vector<JudgedPair>& judged, const std::vector<RankFacts>& ranks,
                 const DoctorLimits& limits, Findings& findings) {
  const auto node_of = [&](int rank) { return ranks[static_cast<std::size_t>(rank)].node; };
  const std::set<int> guilty = culprits(judged);
  const bool between = !judged.empty() && judged.front().pair.between_nodes;
  SlowNodes slow;
  double usual = 0;
  for (const JudgedPair& one : judged) {
    if (!one.slow) continue;
    usual = std::max(usual, one.usual);
    const bool first = guilty.contains(one.pair.first), second = guilty.contains(one.pair.second);
    if (first) add_slow(slow, node_of(one.pair.first), one.pair.first, one.pair.bytes_per_s);
    if (second) add_slow(slow, node_of(one.pair.second), one.pair.second, one.pair.bytes_per_s);
    if (first || second) continue;
    findings.push_back({.severity = between ? Severity::Warning : Severity::Note,
                        .check = "links",
                        .text = fmt::format("ranks {} ({}) and {} ({}) exchange {}, other pairs {}",
                                            one.pair.first, node_of(one.pair.first),
                                            one.pair.second, node_of(one.pair.second),
                                            rate_text(one.pair.bytes_per_s), rate_text(one.usual)),
                        .ranks = {one.pair.first, one.pair.second}});
  }
  for (auto& [node, found] : slow) {
    std::sort(found.ranks.begin(), found.ranks.end());
    found.ranks.erase(std::unique(found.ranks.begin(), found.ranks.end()), found.ranks.end());
    findings.push_back(
        {.severity = found.lowest < limits.failed * usual ? Severity::Error : Severity::Warning,
         .check = "links",
         .text = fmt::format("{} on {}: slow to both neighbours{}, {} (other pairs {})",
                             ranks_text(found.ranks), node, between ? " in other nodes" : "",
                             rate_text(found.lowest), rate_text(usual)),
         .nodes = {node},
         .kind = NodeTrouble::Slow,
         .ranks = found.ranks});
  }
}

void judge_expected(const std::vector<JudgedPair>& judged, double expected, const char* what,
                    const DoctorLimits& limits, Findings& findings) {
  std::vector<double> rates;
  for (const JudgedPair& one : judged) rates.push_back(one.pair.bytes_per_s);
  if (rates.empty() || expected <= 0) return;
  const double usual = median(rates);
  if (usual >= limits.machine * expected) return;
  findings.push_back({Severity::Warning, "links",
                      fmt::format("the median rate {} is {}; the machine description says {}", what,
                                  rate_text(usual), rate_text(expected))});
}

}  // namespace

Findings judge_devices(const std::vector<RankFacts>& ranks, const DoctorLimits& limits,
                       const ExpectedRates& expected) {
  Findings findings;
  judge_results(ranks, findings);
  judge_free_memory(ranks, limits, findings);
  judge_compute_rates(ranks, limits, expected, findings);
  return findings;
}

Findings judge_links(const std::vector<RankFacts>& ranks, const DoctorLimits& limits,
                     const ExpectedRates& expected) {
  Findings findings;
  const NodeGroups groups(nodes_of(ranks));
  const std::set<std::string> busy = busy_nodes(ranks);
  for (const bool between : {false, true}) {
    std::vector<PairRate> pairs;
    for (const RankFacts& rank : ranks)
      for (const PairRate& pair : rank.pairs) {
        if (pair.between_nodes != between) continue;
        const RankFacts &first = ranks[static_cast<std::size_t>(pair.first)],
                        &second = ranks[static_cast<std::size_t>(pair.second)];
        if (pair.wrong)
          findings.push_back(
              {Severity::Error, "links",
               fmt::format("rank {} on {} received other bytes than rank {} on {} sent", rank.rank,
                           rank.node, (rank.rank == first.rank ? second : first).rank,
                           (rank.rank == first.rank ? second : first).node)});
        const bool shared =
            rank.binding.gpu.empty() && (busy.contains(first.node) || busy.contains(second.node));
        if (!shared && rank.rank == pair.first) pairs.push_back(pair);
      }
    const auto judged = compare_pairs(pairs, groups, limits, expected.equal_links);
    judge_pairs(judged, ranks, limits, findings);
    judge_expected(judged, between ? expected.network_bytes_per_s : expected.node_bytes_per_s,
                   between ? "between nodes" : "inside nodes", limits, findings);
  }
  return findings;
}

}  // namespace kintsugi
