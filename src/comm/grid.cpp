#include "comm/grid.h"

#include <algorithm>
#include <cstdint>

#include "comm/local_communicator.h"

namespace kintsugi {

const char* to_string(GroupKind kind) {
  switch (kind) {
    case GroupKind::World:
      return "world";
    case GroupKind::Tp:
      return "tp";
    case GroupKind::Cp:
      return "cp";
    case GroupKind::Pp:
      return "pp";
    case GroupKind::Kv:
      return "kv";
    case GroupKind::Tied:
      return "tied";
    case GroupKind::Shard:
      return "shard";
    case GroupKind::Replica:
      return "replica";
    case GroupKind::Copy:
      return "copy";
  }
  return "?";
}

void check_grid(const Grid& grid, int world_size) {
  if (grid.tp < 1 || grid.cp < 1 || grid.dp < 1 || grid.pp < 1 || grid.shard_group < 0)
    user_error(
        "layout: tp {}, cp {}, dp {} and pp {} must be at least 1, shard_group {} at least 0",
        grid.tp, grid.cp, grid.dp, grid.pp, grid.shard_group);
  const std::int64_t ranks = std::int64_t{grid.tp} * grid.cp * grid.dp * grid.pp;
  if (ranks != world_size)
    user_error("layout: tp {} x cp {} x dp {} x pp {} is {} ranks, but the job has {}", grid.tp,
               grid.cp, grid.dp, grid.pp, ranks, world_size);
  if (grid.data() % grid.shard() != 0)
    user_error("layout: shard_group {} does not divide cp {} x dp {}", grid.shard_group, grid.cp,
               grid.dp);
}

Place place_of(const Grid& grid, int rank) {
  KINTSUGI_CHECK(rank >= 0 && rank < grid.world(), "no rank {} among {}", rank, grid.world());
  Place place;
  place.tp = rank % grid.tp;
  rank /= grid.tp;
  place.cp = rank % grid.cp;
  rank /= grid.cp;
  place.dp = rank % grid.dp;
  place.pp = rank / grid.dp;
  return place;
}

int rank_of(const Grid& grid, const Place& place) {
  return place.tp + grid.tp * (place.cp + grid.cp * (place.dp + grid.dp * place.pp));
}

namespace {

// Which one of its shard group a rank is.
int data_in_shard(const Grid& grid, const Place& place) {
  return (place.cp + grid.cp * place.dp) % grid.shard();
}

}  // namespace

int group_leader(const Grid& grid, GroupKind kind, int rank) {
  Place place = place_of(grid, rank);
  const auto set_data = [&](int index) {
    place.cp = index % grid.cp;
    place.dp = index / grid.cp;
  };
  switch (kind) {
    case GroupKind::World:
      return 0;
    case GroupKind::Tp:
      place.tp = 0;
      break;
    case GroupKind::Cp:
      place.cp = 0;
      break;
    case GroupKind::Pp:
      place.pp = 0;
      break;
    case GroupKind::Kv:
      place.tp -= place.tp % grid.kv_copies;
      break;
    case GroupKind::Tied:
      if (place.pp == grid.pp - 1) place.pp = 0;
      break;
    case GroupKind::Shard:
      set_data(place.cp + grid.cp * place.dp - data_in_shard(grid, place));
      break;
    case GroupKind::Replica:
      set_data(data_in_shard(grid, place));
      break;
    case GroupKind::Copy:
      set_data(place.cp + grid.cp * place.dp - data_in_shard(grid, place));
      place.tp = place.pp = 0;
      break;
  }
  return rank_of(grid, place);
}

std::vector<int> group_members(const Grid& grid, GroupKind kind, int rank) {
  const int leader = group_leader(grid, kind, rank);
  std::vector<int> members;
  for (int other = 0; other < grid.world(); ++other)
    if (group_leader(grid, kind, other) == leader) members.push_back(other);
  return members;
}

Groups make_groups(World& hosts, World& devices, const Grid& grid) {
  check_grid(grid, hosts.size());
  const auto make = [&](GroupKind kind, World& world) {
    return world.split(to_string(kind), group_leader(grid, kind, world.rank()), world.rank());
  };
  // Members are made in the order they are written: the same on all ranks.
  return Groups{.grid = grid,
                .place = place_of(grid, hosts.rank()),
                .node_ranks = hosts.local_size(),
                .world = make(GroupKind::World, hosts),
                .host_tp = make(GroupKind::Tp, hosts),
                .tp = make(GroupKind::Tp, devices),
                .cp = make(GroupKind::Cp, devices),
                .pp = make(GroupKind::Pp, devices),
                .kv = make(GroupKind::Kv, devices),
                .tied = make(GroupKind::Tied, devices),
                .shard = make(GroupKind::Shard, devices),
                .replica = make(GroupKind::Replica, devices),
                .copy = make(GroupKind::Copy, devices)};
}

namespace {

// A rank of a job on paper.
class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size) {}
  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work all_reduce(Tensor, ReduceOp) override { refuse(); }
  Work reduce_scatter(Tensor, Tensor) override { refuse(); }
  Work all_gather(Tensor, Tensor) override { refuse(); }
  Work broadcast(Tensor, int) override { refuse(); }
  Work send(Tensor, int) override { refuse(); }
  Work receive(Tensor, int) override { refuse(); }
  void wait(Work work) override {
    if (work.ticket != 0) refuse();
  }
  void barrier() override { refuse(); }

 private:
  [[noreturn]] void refuse() const { failure("group {} exists on paper only", name_); }
  std::string name_;
  int rank_, size_;
};

class PlannedWorld final : public World {
 public:
  PlannedWorld(const Grid& grid, int rank) : grid_(grid), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return grid_.world(); }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::unique_ptr<Communicator> split(const std::string& name, int, int) override {
    for (const GroupKind kind :
         {GroupKind::World, GroupKind::Tp, GroupKind::Cp, GroupKind::Pp, GroupKind::Kv,
          GroupKind::Tied, GroupKind::Shard, GroupKind::Replica, GroupKind::Copy}) {
      if (name != to_string(kind)) continue;
      const std::vector<int> members = group_members(grid_, kind, rank_);
      const auto at = std::find(members.begin(), members.end(), rank_) - members.begin();
      return std::make_unique<PlannedCommunicator>(name, static_cast<int>(at),
                                                   static_cast<int>(members.size()));
    }
    failure("no group {}", name);
  }

 private:
  Grid grid_;
  int rank_;
};

}  // namespace

Groups planned_groups(const Grid& grid, const Place& place) {
  PlannedWorld world(grid, rank_of(grid, place));
  return make_groups(world, grid);
}

Groups groups_of_one(Backend& backend) {
  LocalWorld world(&backend);
  return make_groups(world, {});
}

}  // namespace kintsugi
