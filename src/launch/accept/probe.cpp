#include "launch/accept/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "tensor/arena.h"

namespace kintsugi {
namespace {

constexpr int kMostGathered = 1024;  // ranks of a group whose numbers are exchanged, n x n of them
constexpr double kOverlapCalls_s = 0.02;  // of an all-reduce that overlaps with matmuls

double highest_of(Communicator& control, double value) {
  control.wait(control.all_reduce(Tensor(&value, DType::F64, {1}), ReduceOp::Max));
  return value;
}

// Numbers of a group in host or device memory.
class Numbers {
 public:
  Numbers(Backend* backend, std::int64_t count) : host_(static_cast<std::size_t>(count)) {
    if (backend == nullptr) {
      tensor_ = Tensor(host_.data(), DType::F32, {count});
      return;
    }
    backend_ = backend;
    arena_ = std::make_unique<Arena>(*backend);
    tensor_ = arena_->allocate(Region::Communication, "accept", DType::F32, {count});
  }
  std::vector<float>& host() { return host_; }
  Tensor uploaded() {
    if (backend_ != nullptr) backend_->upload(tensor_, host_.data());
    return tensor_;
  }
  // As world ranks: each number is one more than a rank.
  std::vector<int> ranks() {
    if (backend_ != nullptr) backend_->download(host_.data(), tensor_);
    std::vector<int> ranks;
    for (const float number : host_)
      ranks.push_back(std::isfinite(number) ? static_cast<int>(std::lround(number)) - 1 : -1);
    return ranks;
  }

 private:
  std::vector<float> host_;
  Backend* backend_ = nullptr;
  std::unique_ptr<Arena> arena_;
  Tensor tensor_;
};

// Whose numbers arrive. In the sums each rank has a place of its own and adds zeros elsewhere, so
// that a sum says which contribution is missing.
void find_members(Communicator& group, Backend* backend, int world_rank, GroupFacts& facts) {
  const auto n = static_cast<std::int64_t>(group.size());
  const auto self = static_cast<std::size_t>(group.rank());
  const auto number = static_cast<float>(world_rank + 1);
  Numbers own(backend, 1), all(backend, n), sum(backend, n);
  own.host()[0] = number;
  group.wait(group.all_gather(all.uploaded(), own.uploaded()));
  facts.gathered = all.ranks();
  sum.host()[self] = number;
  group.wait(group.all_reduce(sum.uploaded()));
  facts.reduced = sum.ranks();
  if (n > kMostGathered) return;
  Numbers full(backend, n * n), shard(backend, n);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
    full.host()[i * static_cast<std::size_t>(n) + self] = number;
  group.wait(group.reduce_scatter(shard.uploaded(), full.uploaded()));
  facts.scattered = shard.ranks();
}

class GroupClock {
 public:
  GroupClock(Communicator& control, Backend& backend, const ProbeLoad& load,
             const SecondsClock& now)
      : control_(control), backend_(backend), load_(load), now_(now), arena_(backend) {
    const std::int64_t elements = load.bytes.back() / 4;
    from_ = arena_.allocate(Region::Communication, "accept", DType::F32, {elements});
    to_ = arena_.allocate(Region::Communication, "accept", DType::F32, {elements});
    backend.fill(from_, 0);
  }

  // All ranks of the job call it; those in groups of one only agree with the others on the sizes.
  std::vector<CollectiveRate> measure(Communicator& group) {
    std::vector<CollectiveRate> rates;
    double slowest = 0;
    for (const std::int64_t bytes : load_.bytes) {
      if (slowest > load_.seconds) break;
      slowest = 0;
      for (const Collective kind : {Collective::AllReduce, Collective::AllGather,
                                    Collective::ReduceScatter, Collective::Send}) {
        const double seconds = group.size() > 1 ? best_of(group, kind, bytes) : 0;
        if (group.size() > 1)
          rates.push_back({kind, static_cast<double>(elements_of(group, bytes) * 4), seconds});
        slowest = std::max(slowest, seconds);
      }
      slowest = highest_of(control_, slowest);
    }
    return rates;
  }

 private:
  static std::int64_t elements_of(const Communicator& group, std::int64_t bytes) {
    return std::max<std::int64_t>(1, bytes / 4 / group.size()) * group.size();
  }
  // The first message between two ranks connects them and waits for the other one: half of the
  // ranks send first.
  static void pass_on(Communicator& group, const Tensor& to, const Tensor& from) {
    const int size = group.size(), next = (group.rank() + 1) % size,
              previous = (group.rank() + size - 1) % size;
    Communicator::Work sent, received;
    if (group.rank() % 2 == 0) sent = group.send(from, next);
    received = group.receive(to, previous);
    if (group.rank() % 2 != 0) sent = group.send(from, next);
    group.wait(sent);
    group.wait(received);
  }
  double best_of(Communicator& group, Collective kind, std::int64_t bytes) {
    const std::int64_t n = elements_of(group, bytes), shard = n / group.size();
    double best = 0;
    for (int i = -1; i < load_.repetitions; ++i) {  // the first one connects
      backend_.synchronize();
      group.barrier();
      const double begin = now_();
      const Tensor from = from_.rows(0, n), to = to_.rows(0, n);
      if (kind == Collective::Send)
        pass_on(group, to, from);
      else
        group.wait(kind == Collective::AllReduce   ? group.all_reduce(from)
                   : kind == Collective::AllGather ? group.all_gather(to, from.rows(0, shard))
                                                   : group.reduce_scatter(to.rows(0, shard), from));
      backend_.synchronize();
      const double seconds = std::max(now_() - begin, 1e-9);
      if (i >= 0) best = i == 0 ? seconds : std::min(best, seconds);
    }
    return best;
  }

  Communicator& control_;
  Backend& backend_;
  const ProbeLoad& load_;
  const SecondsClock& now_;
  Arena arena_;
  Tensor from_, to_;
};

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveRate, kind, bytes, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupFacts, grid, kind, expected, gathered, reduced, scattered,
                                   rates)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OverlapFacts, compute_s, communication_s, both_s)

double OverlapFacts::hidden() const {
  const double shorter = std::min(compute_s, communication_s);
  if (shorter <= 0) return 0;
  return std::clamp((compute_s + communication_s - both_s) / shorter, 0.0, 1.0);
}

std::string to_json_text(const std::vector<ProbeFacts>& ranks) {
  nlohmann::json list = nlohmann::json::array();
  for (const ProbeFacts& one : ranks)
    list.push_back({{"rank", nlohmann::json::parse(to_json_text(one.rank))},
                    {"groups", one.groups},
                    {"overlap", one.overlap},
                    {"seconds", one.seconds}});
  return list.dump() + "\n";
}

std::vector<ProbeFacts> probe_facts_of(const std::string& json_text, const std::string& source) {
  std::vector<ProbeFacts> ranks;
  try {
    for (const nlohmann::json& one : nlohmann::json::parse(json_text))
      ranks.push_back({facts_of(one.at("rank").dump()), one.at("groups"), one.at("overlap"),
                       one.at("seconds").get<double>()});
  } catch (const nlohmann::json::exception& error) {
    user_error("{} was not written by kintsugi accept --probe: {}", source, error.what());
  }
  return ranks;
}

std::string grid_text(const Grid& grid) {
  std::string text;
  const auto add = [&](const char* name, int size) {
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, size);
  };
  add("tp", grid.tp);
  add("cp", grid.cp);
  add("pp", grid.pp);
  add("dp", grid.dp);
  add("shard group", grid.shard_group);
  add("expert ranks", grid.experts);
  return text.empty() ? "1 rank" : text;
}

std::vector<Grid> probed_grids(int ranks, int node_ranks) {
  // The largest power of two that divides the ranks: groups inside a node where there are several.
  const auto part = [&](int most) {
    int size = 1;
    while (2 * size <= most && ranks % (2 * size) == 0) size *= 2;
    return size;
  };
  const int inside = std::max(2, node_ranks), inner = part(inside), pair = part(2);
  if (inner == 1) return {{.dp = ranks}};
  std::vector<Grid> grids = {{.tp = inner, .dp = ranks / inner},
                             {.tp = inner, .dp = ranks / inner, .kv_copies = pair},
                             {.cp = inner, .dp = ranks / inner},
                             {.dp = ranks / inner, .pp = inner},
                             {.dp = ranks}};
  if (ranks / pair > 1) grids.push_back({.tp = ranks / pair, .pp = pair});  // across nodes
  for (const int group : {inner, pair})
    if (group < ranks) {
      grids.push_back({.dp = ranks, .shard_group = group});
      grids.push_back({.dp = ranks, .experts = group});
    }
  for (const int group : {pair, 2 * pair})
    if (group < ranks && ranks % group == 0)
      grids.push_back({.dp = ranks, .shard_group = group, .experts = pair});
  std::vector<Grid> unique;
  for (const Grid& grid : grids)
    if (std::find(unique.begin(), unique.end(), grid) == unique.end()) unique.push_back(grid);
  return unique;
}

std::vector<GroupFacts> measure_groups(World& hosts, World& devices, Backend& backend,
                                       const std::vector<Grid>& grids, const ProbeLoad& load,
                                       const SecondsClock& now) {
  std::vector<GroupFacts> found;
  const auto control = hosts.split("accept", 0, hosts.rank());
  GroupClock clock(*control, backend, load, now);
  std::set<std::vector<int>> timed;  // the first rank of each rank's group
  for (const Grid& grid : grids) {
    const Groups groups = make_groups(hosts, devices, grid);
    for (const GroupSpec& spec : group_specs()) {
      Communicator& group = groups[spec.kind];
      GroupFacts facts{.grid = grid_text(grid),
                       .kind = spec.name,
                       .expected = group_members(grid, spec.kind, hosts.rank())};
      find_members(group, spec.on_host ? nullptr : &backend, hosts.rank(), facts);
      std::vector<int> groups_of_ranks;
      for (int rank = 0; rank < hosts.size(); ++rank)
        groups_of_ranks.push_back(group_members(grid, spec.kind, rank).front());
      // Other kinds with the same groups have the same links.
      if (!spec.on_host && timed.insert(groups_of_ranks).second) facts.rates = clock.measure(group);
      if (facts.expected.size() > 1 || facts.gathered.size() > 1) found.push_back(std::move(facts));
    }
    control->barrier();  // before the groups end
  }
  return found;
}

OverlapFacts measure_overlap(World& hosts, World& devices, Backend& backend, const ProbeLoad& load,
                             const SecondsClock& now) {
  if (devices.size() == 1) return {};
  const auto control = hosts.split("accept", 0, hosts.rank());
  const auto group = devices.split("accept overlap", 0, devices.rank());
  Arena arena(backend);
  const Shape square{load.matmul, load.matmul};
  const auto matrix = [&] {
    const Tensor x = arena.allocate(Region::Workspace, "accept", load.precision, square);
    backend.fill(x, 0.01);
    return x;
  };
  const Tensor a = matrix(), b = matrix(), c = matrix();
  const Tensor message =
      arena.allocate(Region::Communication, "accept", DType::F32, {load.bytes.back() / 4});
  backend.fill(message, 0);
  const auto seconds_of = [&](int calls, int matmuls) {
    backend.synchronize();
    control->barrier();
    const double begin = now();
    for (int call = 0; call < std::max(calls, 1); ++call) {
      Communicator::Work work;
      if (calls > 0) work = group->all_reduce(message);
      for (int i = 0; i < matmuls; ++i) backend.matmul(c, a, b, {.transpose_b = true});
      if (calls > 0) group->wait(work);
    }
    backend.synchronize();
    return highest_of(*control, now() - begin);
  };
  seconds_of(1, 1);  // connects, chooses algorithms
  const double call_s = std::max(seconds_of(1, 0), 1e-9);
  const double matmul_s = std::max(seconds_of(0, 4) / 4, 1e-9);
  const int calls = static_cast<int>(std::clamp(kOverlapCalls_s / call_s, 1.0, 100.0));
  const int matmuls = static_cast<int>(std::clamp(call_s / matmul_s, 1.0, 10000.0));
  return {.compute_s = calls * seconds_of(0, matmuls),
          .communication_s = seconds_of(calls, 0),
          .both_s = seconds_of(calls, matmuls)};
}

}  // namespace kintsugi
