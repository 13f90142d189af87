#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

#include "core/statistics.h"
#include "core/units.h"
#include "launch/accept/judge.h"

namespace kintsugi {
namespace {

constexpr double kBusyFactor = 0.4;  // CPU cores: other programs may use them, and their memory

using Ranks = std::vector<int>;

std::string ranks_text(const Ranks& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::vector<std::string> nodes_of(const Ranks& ranks, const std::vector<ProbeFacts>& facts) {
  std::set<std::string> names;
  for (const int rank : ranks)
    if (rank >= 0 && rank < static_cast<int>(facts.size()))
      names.insert(facts[static_cast<std::size_t>(rank)].rank.node);
  return {names.begin(), names.end()};
}

bool has_gpus(const std::vector<ProbeFacts>& ranks) {
  return !ranks.empty() && !ranks.front().rank.binding.gpu.empty();
}

// The facts of one kind of group in one grid, by rank.
using Kinds = std::map<std::pair<std::string, std::string>, std::map<int, const GroupFacts*>>;
Kinds by_kind(const std::vector<ProbeFacts>& ranks) {
  Kinds kinds;
  for (const ProbeFacts& rank : ranks)
    for (const GroupFacts& group : rank.groups)
      kinds[{group.grid, group.kind}][rank.rank.rank] = &group;
  return kinds;
}

// ---- members

// Of the ranks that met in one group, those that belong to another one than most of them.
Ranks misplaced(const std::map<int, const GroupFacts*>& members) {
  std::set<int> found, wrong;
  for (const auto& [rank, facts] : members) {
    if (facts->gathered == facts->expected) continue;
    wrong.insert(rank);
    std::map<int, Ranks> homes;  // by the first rank of the group in which they should be
    for (const int other : facts->gathered)
      if (const auto at = members.find(other); at != members.end())
        homes[at->second->expected.front()].push_back(other);
    std::size_t most = 0;
    for (const auto& [home, ranks] : homes) most = std::max(most, ranks.size());
    const auto largest = std::count_if(
        homes.begin(), homes.end(), [&](const auto& home) { return home.second.size() == most; });
    for (const auto& [home, ranks] : homes)
      if (homes.size() > 1 && (ranks.size() < most || largest > 1))
        found.insert(ranks.begin(), ranks.end());
  }
  if (found.empty()) found = wrong;
  return {found.begin(), found.end()};
}

// The ranks whose contributions are missing in sums of most others, or that miss those of most.
Ranks wrong_sums(const std::map<int, const GroupFacts*>& members) {
  std::map<int, int> votes;
  for (const auto& [rank, facts] : members)
    for (const Ranks* sum : {&facts->reduced, &facts->scattered})
      for (std::size_t i = 0; i < std::min(sum->size(), facts->gathered.size()); ++i)
        if ((*sum)[i] != facts->gathered[i]) ++votes[rank], ++votes[facts->gathered[i]];
  int most = 0;
  for (const auto& [rank, count] : votes) most = std::max(most, count);
  Ranks ranks;
  for (const auto& [rank, count] : votes)
    if (count == most) ranks.push_back(rank);
  return ranks;
}

std::string seen_text(const std::map<int, const GroupFacts*>& members, int rank) {
  const auto at = members.find(rank);
  if (at == members.end()) return {};
  return fmt::format(": rank {} meets ranks {} instead of {}", rank,
                     fmt::join(at->second->gathered, " "), fmt::join(at->second->expected, " "));
}

constexpr const char* kSendReport =
    "start all ranks with the same program and environment; if it stays, send acceptance.json to "
    "the developers: training in layouts with this group computes wrong gradients";

}  // namespace

std::string_view to_string(Verdict verdict) {
  return enum_name(verdict, {"pass", "FAIL", "noted", "not measured", "incomplete"});
}

AcceptCheck not_measured(std::string part, std::string name, std::string why) {
  return {.part = std::move(part),
          .name = std::move(name),
          .verdict = Verdict::NotMeasured,
          .text = std::move(why)};
}

AcceptChecks judge_ranks(const std::vector<ProbeFacts>& found, int ranks) {
  if (std::ssize(found) == ranks) return {};
  return {{.part = "machine",
           .name = "ranks",
           .verdict = Verdict::Fail,
           .text = fmt::format("the launch command started {} together instead of {}",
                               format_number(std::ssize(found), "rank"), ranks),
           .remedy = "correct --launch: it must start {ranks} ranks of one MPI job, with the MPI "
                     "that this program was built with"}};
}

AcceptChecks judge_doctor(const Findings& findings) {
  AcceptChecks checks;
  std::set<std::string> failed;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::Note) continue;
    const bool error = finding.severity == Severity::Error;
    if (error) failed.insert(finding.check);
    checks.push_back({.part = "machine",
                      .name = finding.check,
                      .verdict = error ? Verdict::Fail : Verdict::Noted,
                      .text = finding.text,
                      .remedy = !error            ? ""
                                : finding.mistake ? "correct the launch command"
                                                  : "leave the node out, and report it to its site",
                      .ranks = finding.ranks,
                      .nodes = finding.nodes});
  }
  for (const char* check : {"binding", "device", "links"})
    if (!failed.contains(check))
      checks.push_back({.part = "machine", .name = check, .text = "no errors"});
  return checks;
}

AcceptChecks judge_members(const std::vector<ProbeFacts>& ranks) {
  AcceptChecks checks;
  const Kinds kinds = by_kind(ranks);
  for (const auto& [key, members] : kinds) {
    const auto& [grid, kind] = key;
    const bool placed = std::all_of(members.begin(), members.end(), [](const auto& one) {
      return one.second->gathered == one.second->expected;
    });
    const Ranks culprits = placed ? wrong_sums(members) : misplaced(members);
    if (culprits.empty()) continue;
    checks.push_back(
        {.part = "groups",
         .name = fmt::format("{} ({})", kind, grid),
         .verdict = Verdict::Fail,
         .text = placed ? fmt::format("sums over the {} groups do not have the numbers of {} once",
                                      kind, ranks_text(culprits))
                        : fmt::format("{} {} in a wrong {} group{}", ranks_text(culprits),
                                      culprits.size() == 1 ? "is" : "are", kind,
                                      seen_text(members, culprits.front())),
         .remedy = kSendReport,
         .group = kind,
         .ranks = culprits,
         .nodes = nodes_of(culprits, ranks)});
  }
  if (checks.empty() && !kinds.empty()) {
    std::set<std::string> names;
    for (const auto& [key, members] : kinds) names.insert(key.second);
    checks.push_back({.part = "groups",
                      .name = "members",
                      .text = fmt::format("every sum has the number of each member once: {}",
                                          fmt::join(names, ", "))});
  }
  return checks;
}

std::vector<GroupBandwidth> bandwidths_of(const std::vector<ProbeFacts>& ranks) {
  struct Group {
    Ranks members;
    double seconds = 0;  // of its slowest rank
  };
  using Key = std::tuple<std::string, std::string, std::size_t, std::size_t, int, double>;
  std::map<Key, std::map<int, Group>> found;  // groups by their first rank
  for (const ProbeFacts& rank : ranks)
    for (const GroupFacts& facts : rank.groups)
      for (const CollectiveRate& rate : facts.rates) {
        if (facts.gathered.size() < 2) continue;
        const Key key{facts.grid,
                      facts.kind,
                      facts.gathered.size(),
                      nodes_of(facts.gathered, ranks).size(),
                      static_cast<int>(rate.kind),
                      rate.bytes};
        Group& group = found[key][facts.gathered.front()];
        group.members = facts.gathered;
        group.seconds = std::max(group.seconds, rate.seconds);
      }
  std::vector<GroupBandwidth> bandwidths;
  for (const auto& [key, groups] : found) {
    const auto& [grid, kind, size, nodes, collective, bytes] = key;
    GroupBandwidth one{.grid = grid,
                       .kind = kind,
                       .size = static_cast<int>(size),
                       .groups = static_cast<int>(groups.size()),
                       .collective = static_cast<Collective>(collective),
                       .bytes = bytes};
    std::vector<double> rates;
    for (const auto& [first, group] : groups) {
      const double rate =
          ring_bytes(one.collective, bytes, one.size) / std::max(group.seconds, 1e-9);
      if (rates.empty() || rate < one.lowest) one.lowest = rate, one.slowest = group.members;
      rates.push_back(rate);
    }
    one.median = median(rates);
    // Of two groups the slow one would be half of the median.
    if (rates.size() == 2) one.median = std::max(rates[0], rates[1]);
    bandwidths.push_back(std::move(one));
  }
  return bandwidths;
}

AcceptChecks judge_bandwidths(const std::vector<ProbeFacts>& ranks, const AcceptLimits& limits) {
  std::vector<RankFacts> hosts;
  for (const ProbeFacts& rank : ranks) hosts.push_back(rank.rank);
  const bool gpus = has_gpus(ranks);
  const double least = gpus ? limits.slow_group : limits.slow_group * kBusyFactor;
  std::map<std::pair<std::string, std::string>, GroupBandwidth> slow;  // the worst of each kind
  std::map<std::tuple<std::string, std::string, Collective>, double> largest;
  const std::vector<GroupBandwidth> all = bandwidths_of(ranks);
  for (const GroupBandwidth& one : all) {
    double& most = largest[{one.grid, one.kind, one.collective}];
    most = std::max(most, one.bytes);
  }
  std::size_t compared = 0;
  for (const GroupBandwidth& one : all) {
    if (one.groups < 2 || one.bytes < largest[{one.grid, one.kind, one.collective}]) continue;
    const auto names = nodes_of(one.slowest, ranks);
    if (!gpus && std::any_of(names.begin(), names.end(),
                             [&](const std::string& node) { return oversubscribed(hosts, node); }))
      continue;
    ++compared;
    if (one.lowest >= least * one.median) continue;
    const auto [at, added] = slow.emplace(std::pair(one.grid, one.kind), one);
    if (!added && one.lowest / one.median < at->second.lowest / at->second.median) at->second = one;
  }
  AcceptChecks checks;
  for (const auto& [key, one] : slow)
    checks.push_back(
        {.part = "bandwidth",
         .name = fmt::format("{} ({})", one.kind, one.grid),
         .verdict = Verdict::Fail,
         .text = fmt::format("the {} group of {} reaches {:.3g} GB/s in an {} of {}, the others "
                             "{:.3g} GB/s",
                             one.kind, ranks_text(one.slowest), one.lowest / 1e9,
                             to_string(one.collective), format_bytes(one.bytes), one.median / 1e9),
         .remedy = "the check links names the slow rank or pair, if there are enough pairs: leave "
                   "its node out, and report it to its site",
         .group = one.kind,
         .ranks = one.slowest,
         .nodes = nodes_of(one.slowest, ranks)});
  if (!checks.empty()) return checks;
  if (all.empty()) return {not_measured("bandwidth", "groups", "there is only one rank")};
  if (compared == 0)
    return {{.part = "bandwidth",
             .name = "groups",
             .verdict = Verdict::Noted,
             .text = gpus ? "no two groups to compare"
                          : "not compared: no two groups, or more threads than cores"}};
  return {{.part = "bandwidth",
           .name = "groups",
           .text = fmt::format("no group is below {:.0f} % of the others", 100 * least)}};
}

AcceptChecks judge_overlap(const std::vector<ProbeFacts>& ranks, const AcceptLimits& limits) {
  double least = 1;
  Ranks worst;
  for (const ProbeFacts& rank : ranks) {
    if (rank.overlap.both_s <= 0) continue;
    if (worst.empty() || rank.overlap.hidden() < least) worst = {rank.rank.rank};
    least = std::min(least, rank.overlap.hidden());
  }
  if (worst.empty()) return {not_measured("overlap", "all-reduce", "there is only one rank")};
  AcceptCheck check{
      .part = "overlap",
      .name = "all-reduce",
      .verdict = has_gpus(ranks) ? Verdict::Pass : Verdict::Noted,
      .text = fmt::format("matmuls hide {:.0f} % of an all-reduce over all ranks", 100 * least)};
  if (check.verdict == Verdict::Pass && least < limits.overlap) {
    check.verdict = Verdict::Fail;
    check.remedy =
        "run kintsugi doctor, which says whether nodes are connected by TCP, and look for "
        "variables "
        "such as CUDA_LAUNCH_BLOCKING in the job's environment";
    check.ranks = worst;
    check.nodes = nodes_of(worst, ranks);
  }
  return {check};
}

Table bandwidth_table(const std::vector<GroupBandwidth>& bandwidths) {
  const auto rate = [](const char* title, const char* key) {
    return Column::number(title, key,
                          [](double value) { return fmt::format("{:.3g}", value / 1e9); });
  };
  Table table({Column::text("grid", "grid"), Column::text("group", "group"),
               Column::number("ranks", "size"), Column::number("groups", "groups"),
               Column::text("collective", "collective"), Column::bytes("size", "bytes"),
               rate("lowest GB/s", "lowest_bytes_per_s"), rate("usual GB/s", "usual_bytes_per_s"),
               Column::hidden("slowest_ranks")});
  for (const GroupBandwidth& one : bandwidths)
    table.add({one.grid, one.kind, one.size, one.groups, to_string(one.collective), one.bytes,
               one.lowest, one.median, one.slowest});
  return table;
}

Machine with_links(Machine machine, const std::vector<ProbeFacts>& ranks) {
  std::vector<double> inside, between;
  std::map<std::string, std::int64_t> nodes;
  for (const ProbeFacts& rank : ranks) {
    ++nodes[rank.rank.node];
    for (const PairRate& pair : rank.rank.pairs)
      (pair.between_nodes ? between : inside).push_back(pair.bytes_per_s / 1e9);
  }
  if (!inside.empty()) machine.node.link_gb_s = median(inside);
  if (!between.empty()) machine.network.gb_s = median(between);
  machine.nodes = std::max(machine.nodes, std::ssize(nodes));
  for (const auto& [name, count] : nodes) machine.node.gpus = std::max(machine.node.gpus, count);
  return machine;
}

std::vector<double> fit_links(Machine& machine, const GroupSpread& group,
                              const std::vector<CollectiveRate>& rates) {
  constexpr int kRounds = 20;
  const bool inside = group.size * group.stride <= machine.node.gpus;
  double& gb_s = inside ? machine.node.link_gb_s : machine.network.gb_s;
  double& latency_us = inside ? machine.node.latency_us : machine.network.latency_us;
  const auto is_fitted = [](const CollectiveRate& rate) { return !is_message(rate.kind); };
  const auto [least, most] =
      std::ranges::minmax(rates | std::views::filter(is_fitted), {}, &CollectiveRate::bytes);
  const auto ratio = [&](const CollectiveRate& rate) {
    return collective_s(links_of(machine, group), rate.kind, rate.bytes) / rate.seconds;
  };
  const auto mean_ratio = [&](double bytes) {
    std::vector<double> ratios;
    for (const CollectiveRate& rate : rates)
      if (is_fitted(rate) && rate.bytes == bytes) ratios.push_back(ratio(rate));
    return mean(ratios);
  };
  if (gb_s <= 0) gb_s = 10;
  if (latency_us <= 0) latency_us = 1;
  for (int round = 0; round < kRounds; ++round) {
    gb_s *= mean_ratio(most.bytes);
    if (!inside) gb_s = std::min(gb_s, machine.node.link_gb_s);
    latency_us = std::clamp(latency_us / mean_ratio(least.bytes), 0.01, 1e5);
  }
  for (double* value : {&gb_s, &latency_us}) *value = std::stod(fmt::format("{:.4g}", *value));
  std::vector<double> found;
  for (const CollectiveRate& rate : rates) found.push_back(ratio(rate));
  return found;
}

}  // namespace kintsugi
