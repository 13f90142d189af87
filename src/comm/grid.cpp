#include "comm/grid.h"

namespace kintsugi {

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
  if (grid.experts < 1 || grid.data() % grid.copy() != 0 ||
      grid.copy() % std::min(grid.shard(), grid.experts) != 0)
    user_error("layout: experts on {} data ranks do not fit cp {} x dp {} in shard groups of {}",
               grid.experts, grid.cp, grid.dp, grid.shard());
}

Coordinates coordinates_of(const Grid& grid, int rank) {
  KINTSUGI_CHECK(rank >= 0 && rank < grid.world(), "no rank {} among {}", rank, grid.world());
  Coordinates coordinates;
  coordinates.tp = rank % grid.tp;
  rank /= grid.tp;
  coordinates.cp = rank % grid.cp;
  rank /= grid.cp;
  coordinates.dp = rank % grid.dp;
  coordinates.pp = rank / grid.dp;
  return coordinates;
}

int rank_of(const Grid& grid, const Coordinates& coordinates) {
  return coordinates.tp +
         grid.tp * (coordinates.cp + grid.cp * (coordinates.dp + grid.dp * coordinates.pp));
}

// ---- the kinds

namespace {

int data_index(const Grid& grid, const Coordinates& coordinates) {
  return coordinates.cp + grid.cp * coordinates.dp;
}

// The rank with another data index and the same tp and pp.
int with_data(const Grid& grid, Coordinates coordinates, int index) {
  coordinates.cp = index % grid.cp;
  coordinates.dp = index / grid.cp;
  return rank_of(grid, coordinates);
}

int first_of_shard(const Grid& grid, const Coordinates& coordinates) {
  const int data = data_index(grid, coordinates);
  return data - data % grid.shard();
}

// The data ranks `first`, `first` + stride, …, `size` of them, one of which is at `coordinates`.
GroupMembership data_ranks(const Grid& grid, const Coordinates& coordinates, int first, int size,
                           int stride) {
  const int data = data_index(grid, coordinates);
  return {with_data(grid, coordinates, first), (data - first) / stride, size, grid.tp * stride};
}

GroupMembership alone(const Grid& grid, const Coordinates& coordinates) {
  return {rank_of(grid, coordinates), 0, 1, 1};
}

GroupMembership all_ranks(const Grid& grid, const Coordinates& coordinates) {
  return {0, rank_of(grid, coordinates), grid.world(), 1};
}

GroupMembership tp_group(const Grid& grid, const Coordinates& coordinates) {
  return {rank_of(grid, coordinates) - coordinates.tp, coordinates.tp, grid.tp, 1};
}

GroupMembership tied_group(const Grid& grid, const Coordinates& coordinates) {
  const int stage = grid.tp * grid.data();
  if (grid.pp == 1 || (coordinates.pp > 0 && coordinates.pp < grid.pp - 1))
    return {rank_of(grid, coordinates), 0, 1, stage};
  return {rank_of(grid, coordinates) - coordinates.pp * stage, coordinates.pp > 0 ? 1 : 0, 2,
          stage * (grid.pp - 1)};
}

GroupMembership copy_group(const Grid& grid, const Coordinates& coordinates) {
  const int copy = grid.copy(), data = data_index(grid, coordinates), in_copy = data % copy;
  return {with_data(grid, {}, data - in_copy),
          coordinates.tp + grid.tp * (in_copy + copy * coordinates.pp), grid.tp * grid.pp * copy,
          1};
}

constexpr bool kHost = true, kDevice = false;

constexpr std::array<GroupSpec, kGroupKinds> kSpecs = {{
    {GroupKind::World, "world", kHost, all_ranks},
    {GroupKind::Checkpoint, "checkpoint", kHost, all_ranks},
    {GroupKind::HostTp, "host_tp", kHost, tp_group},
    {GroupKind::Tp, "tp", kDevice, tp_group},
    {GroupKind::Cp, "cp", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       return {rank_of(grid, coordinates) - grid.tp * coordinates.cp, coordinates.cp, grid.cp,
               grid.tp};
     }},
    {GroupKind::Pp, "pp", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       const int stage = grid.tp * grid.data();
       return {rank_of(grid, coordinates) - stage * coordinates.pp, coordinates.pp, grid.pp, stage};
     }},
    {GroupKind::Kv, "kv", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       const int rank = coordinates.tp % grid.kv_copies;
       return {rank_of(grid, coordinates) - rank, rank, grid.kv_copies, 1};
     }},
    {GroupKind::Tied, "tied", kDevice, tied_group},
    {GroupKind::Shard, "shard", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       return data_ranks(grid, coordinates, first_of_shard(grid, coordinates), grid.shard(), 1);
     }},
    {GroupKind::Replica, "replica", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       const int shard = grid.shard();
       return data_ranks(grid, coordinates, data_index(grid, coordinates) % shard,
                         grid.data() / shard, shard);
     }},
    {GroupKind::Copy, "copy", kDevice, copy_group},
    {GroupKind::Experts, "experts", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       const int data = data_index(grid, coordinates);
       return data_ranks(grid, coordinates, data - data % grid.experts, grid.experts, 1);
     }},
    {GroupKind::ExpertsShard, "experts_shard", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       if (grid.experts == 1 || grid.shard() <= grid.experts) return alone(grid, coordinates);
       const int place = data_index(grid, coordinates) % grid.experts;
       return data_ranks(grid, coordinates, first_of_shard(grid, coordinates) + place,
                         grid.shard() / grid.experts, grid.experts);
     }},
    {GroupKind::ExpertsReplica, "experts_replica", kDevice,
     [](const Grid& grid, const Coordinates& coordinates) -> GroupMembership {
       if (grid.experts == 1) return alone(grid, coordinates);
       const int copy = grid.copy();
       return data_ranks(grid, coordinates, data_index(grid, coordinates) % copy,
                         grid.data() / copy, copy);
     }},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kSpecs.size(); ++i)
    if (kSpecs[i].kind != static_cast<GroupKind>(i)) return false;
  return true;
}
static_assert(in_order(), "the table is indexed by kind");

}  // namespace

const std::array<GroupSpec, kGroupKinds>& group_specs() { return kSpecs; }

const char* to_string(GroupKind kind) { return kSpecs[static_cast<std::size_t>(kind)].name; }

GroupKind parse_group_kind(std::string_view name) {
  for (const GroupSpec& spec : kSpecs)
    if (name == spec.name) return spec.kind;
  failure("no kind of group is named {}", name);
}

GroupMembership group_position(const Grid& grid, GroupKind kind, const Coordinates& coordinates) {
  return kSpecs[static_cast<std::size_t>(kind)].position(grid, coordinates);
}

std::vector<int> group_members(const Grid& grid, GroupKind kind, int rank) {
  const auto leader_of = [&](int one) {
    return group_position(grid, kind, coordinates_of(grid, one)).leader;
  };
  const int leader = leader_of(rank);
  std::vector<int> members;
  for (int other = 0; other < grid.world(); ++other)
    if (leader_of(other) == leader) members.push_back(other);
  return members;
}

// ---- the groups of a rank

Groups make_groups(const Grid& grid, const Coordinates& coordinates, const MakeCommunicator& make) {
  Groups groups{.grid = grid, .coordinates = coordinates};
  for (std::size_t i = 0; i < kSpecs.size(); ++i)
    groups.communicators[i] = make(kSpecs[i], kSpecs[i].position(grid, coordinates));
  return groups;
}

Groups make_groups(World& hosts, World& devices, const Grid& grid) {
  check_grid(grid, hosts.size());
  Groups groups = make_groups(grid, coordinates_of(grid, hosts.rank()),
                              [&](const GroupSpec& spec, const GroupMembership& position) {
                                World& world = spec.on_host ? hosts : devices;
                                return world.split(spec.name, position.leader, world.rank());
                              });
  groups.node_ranks = hosts.local_size();
  return groups;
}

namespace {

// For planning: has a rank and a size, but cannot communicate.
class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(std::string name, int rank, int size)
      : Communicator(std::move(name), rank, size) {}
  Work start(const Call&) override { refuse(); }
  void wait(Work work) override {
    if (work.ticket != 0) refuse();
  }
  void barrier() override { refuse(); }

 private:
  [[noreturn]] void refuse() const { failure("group {} is for planning only", name()); }
};

}  // namespace

Groups planned_groups(const Grid& grid, const Coordinates& coordinates) {
  KINTSUGI_CHECK(coordinates_of(grid, rank_of(grid, coordinates)) == coordinates,
                 "coordinates outside the grid");
  return make_groups(grid, coordinates, [](const GroupSpec& spec, const GroupMembership& position) {
    return std::make_unique<PlannedCommunicator>(spec.name, position.rank, position.size);
  });
}

Groups single_rank_groups(Backend& backend) {
  LocalWorld world(&backend);
  return make_groups(world, {});
}

}  // namespace kintsugi
