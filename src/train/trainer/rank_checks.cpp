#include "train/trainer/rank_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/statistics.h"

namespace kintsugi {
namespace {

constexpr double kStragglerCost = 0.05;                        // of a step; less is not reported
constexpr std::int64_t kHashedBytes = std::int64_t{64} << 20;  // copied at a time

// The hash of the elements of a parameter that are stored on this rank.
std::int64_t hash_of(Engine& engine, const Parameter& parameter, std::vector<std::byte>& buffer) {
  const Sharding& sharding = engine.sharding();
  const Sharding::Range stored = sharding.stored_weights(parameter.bucket);
  const std::int64_t begin = std::max(stored.begin, parameter.offset),
                     end = std::min(stored.end, parameter.offset + parameter.shape.elements());
  StreamHash hash;
  const DType dtype = sharding.weights_at(parameter.bucket, {stored.begin, stored.begin}).dtype();
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t most = kHashedBytes / width;
  for (std::int64_t first = begin; first < end; first += most) {
    const std::int64_t count = std::min(most, end - first);
    buffer.resize(static_cast<std::size_t>(count * width));
    engine.backend().download(buffer.data(),
                              sharding.weights_at(parameter.bucket, {first, first + count}));
    hash.update(buffer.data(), buffer.size());
  }
  return static_cast<std::int64_t>(hash.digest());
}

std::int64_t combined(const std::vector<std::int64_t>& hashes) {
  return static_cast<std::int64_t>(hash64(hashes.data(), hashes.size() * sizeof(std::int64_t)));
}

// The data ranks with the same place in groups of so many.
std::vector<int> data_ranks_like(const Grid& grid, int rank, int group) {
  const auto place = [&](const Coordinates& at) { return (at.cp + grid.cp * at.dp) % group; };
  Coordinates at = coordinates_of(grid, rank);
  const int own = place(at);
  std::vector<int> ranks;
  for (at.dp = 0; at.dp < grid.dp; ++at.dp)
    for (at.cp = 0; at.cp < grid.cp; ++at.cp)
      if (place(at) == own) ranks.push_back(rank_of(grid, at));
  return ranks;
}

// The ranks whose weights must be those of `rank`: data ranks, or tensor ranks.
std::vector<int> data_replicas(const Engine& engine, int rank) {
  const Grid& grid = engine.groups().grid;
  return data_ranks_like(grid, rank, engine.options().layout.zero == 3 ? grid.shard() : 1);
}
std::vector<int> replicas_of_experts(const Engine& engine, int rank) {
  const Grid& grid = engine.groups().grid;
  return data_ranks_like(grid, rank,
                         engine.options().layout.zero == 3 ? grid.copy() : grid.experts);
}
std::vector<int> tensor_copies(const Engine& engine, int rank) {
  return group_members(engine.groups().grid, GroupKind::Tp, rank);
}
std::vector<int> key_value_copies(const Engine& engine, int rank) {
  return group_members(engine.groups().grid, GroupKind::Kv, rank);
}
using MembersOf = std::vector<int> (*)(const Engine&, int rank);

// The ranks that differ from most of their replicas; all of them if there is no majority. In the
// first group that differs.
std::vector<int> odd_ranks(const Engine& engine, MembersOf members,
                           const std::vector<std::int64_t>& hashes) {
  std::vector<bool> seen(hashes.size());
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (seen[rank]) continue;
    const std::vector<int> group = members(engine, static_cast<int>(rank));
    std::map<std::int64_t, std::size_t> counts;
    for (const int one : group) {
      seen[one] = true;
      ++counts[hashes[one]];
    }
    if (counts.size() == 1) continue;
    std::vector<int> odd;
    for (const int one : group)
      if (2 * counts[hashes[one]] <= group.size()) odd.push_back(one);
    return odd;
  }
  return {};
}

// One kind of copies: which ranks hold them, and of which parameters.
struct Copies {
  const char* what;
  MembersOf members;
  bool (*holds)(const Parameter&);
};
bool is_everywhere(const Parameter& parameter) { return parameter.data == DataGroups{}; }
bool is_expert(const Parameter& parameter) { return !is_everywhere(parameter); }
bool is_copied(const Parameter& parameter) { return parameter.shard.copies > 1; }
bool is_whole(const Parameter& parameter) { return parameter.shard.dimension < 0; }
constexpr Copies kCopies[] = {{"data-parallel replicas", data_replicas, is_everywhere},
                              {"data ranks with the same experts", replicas_of_experts, is_expert},
                              {"tensor ranks", tensor_copies, is_whole},
                              {"tensor ranks with the same heads", key_value_copies, is_copied}};

// Names the first parameter that differs. Only after a difference was found.
std::string describe_difference(Engine& engine, const Copies& copies,
                                const std::vector<std::int64_t>& hashes) {
  Communicator& world = engine.groups()[GroupKind::World];
  const std::vector<Parameter>& own = engine.parameters().parameters();
  const std::vector<std::string> counts = gather_texts(world, std::to_string(own.size()));
  std::size_t most = 0;
  for (const std::string& count : counts) most = std::max<std::size_t>(most, std::stoul(count));
  const std::vector<std::string> nodes = gather_texts(world, node_name());
  for (std::size_t i = 0; i < most; ++i) {
    const bool here = i < own.size() && copies.holds(own[i]);
    const auto odd = odd_ranks(engine, copies.members, gather_values(world, here ? hashes[i] : 0));
    if (odd.empty()) continue;
    const std::string name = text_of(world, odd.front(), here ? own[i].name : "");
    std::string ranks;
    for (const int rank : odd)
      ranks += fmt::format("{}{} on node {}", ranks.empty() ? "" : ", ", rank, nodes[rank]);
    return fmt::format("the copies of {} on {} differ: rank{} {}", name, copies.what,
                       odd.size() == 1 ? "" : "s", ranks);
  }
  return fmt::format("the weights of {} differ", copies.what);
}

}  // namespace

std::string differing_replicas(Engine& engine) {
  engine.sharding().finish_weights();
  Communicator& world = engine.groups()[GroupKind::World];
  std::vector<std::int64_t> hashes;
  std::vector<std::byte> buffer;
  for (const Parameter& parameter : engine.parameters().parameters())
    hashes.push_back(hash_of(engine, parameter, buffer));
  for (const Copies& copies : kCopies) {
    std::vector<std::int64_t> held;
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (copies.holds(engine.parameters().parameters()[i])) held.push_back(hashes[i]);
    if (!odd_ranks(engine, copies.members, gather_values(world, combined(held))).empty())
      return describe_difference(engine, copies, hashes);
  }
  return "";
}

Straggler slowest_rank(const std::vector<double>& seconds) {
  if (seconds.empty()) return {};
  const auto slowest = std::ranges::max_element(seconds);
  const double middle = median(seconds);
  return {.rank = static_cast<int>(slowest - seconds.begin()),
          .ratio = middle > 0 ? *slowest / middle : 1.0};
}

void RankChecks::note_step() {
  compute_s_ += run_.record.step_time_s - run_.record.comm_wait_s.value_or(0);
  ++compute_steps_;
}

// The mean of the times in which each rank computed, since the last call.
void RankChecks::find_straggler(double step_s) {
  if (run_.groups.ranks() == 1 || !run_.due(10 * run_.config.train.log_every)) return;
  const double own = compute_s_ / static_cast<double>(std::max<std::int64_t>(compute_steps_, 1));
  compute_s_ = 0;
  compute_steps_ = 0;
  const std::vector<double> all = gather_values(run_.host(), own);
  if (run_.is_first()) run_.log->files().write_ranks(run_.state.step, all);
  Straggler slowest = slowest_rank(all);
  slowest.node = text_of(run_.host(), slowest.rank, node_name());
  run_.record.straggler = slowest;
  const double slowest_s = all[slowest.rank];
  // In very short steps the ratio is noise.
  const bool costs_time = slowest_s - slowest_s / slowest.ratio > kStragglerCost * step_s;
  if (run_.is_first() && slowest.ratio >= kStragglerRatio && costs_time)
    log_warning(
        "rank {} on node {} is slow: it computes for {:.3g} s per step, {:.2f} times the median of "
        "all ranks",
        slowest.rank, slowest.node, slowest_s, slowest.ratio);
}

void RankChecks::check_replicas(bool saves) {
  const std::int64_t every = run_.config.train.verify_replicas_every;
  if (every == 0 || run_.groups.ranks() == 1 || !(run_.due(every) || saves)) return;
  const std::string difference = differing_replicas(*run_.engine);
  if (difference.empty()) return;
  throw SharedFailure(fmt::format(
      "after step {} {}: nothing is saved from now on; run again to continue from {}, without "
      "these nodes if it happens again",
      run_.state.step, difference,
      run_.checkpoints.last.empty() ? "the start" : run_.checkpoints.last));
}

}  // namespace kintsugi
