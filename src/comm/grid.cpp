#include "comm/grid.h"

#include <cstdint>

namespace kintsugi {

const char* to_string(GroupKind kind) {
  switch (kind) {
    case GroupKind::World:
      return "world";
    case GroupKind::Tp:
      return "tp";
    case GroupKind::Cp:
      return "cp";
    case GroupKind::Dp:
      return "dp";
    case GroupKind::Pp:
      return "pp";
    case GroupKind::Shard:
      return "shard";
    case GroupKind::Replica:
      return "replica";
    case GroupKind::Data:
      return "data";
    case GroupKind::Model:
      return "model";
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
  if (grid.dp % grid.shard() != 0)
    user_error("layout: shard_group {} does not divide dp {}", grid.shard_group, grid.dp);
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

int group_leader(const Grid& grid, GroupKind kind, int rank) {
  Place place = place_of(grid, rank);
  switch (kind) {
    case GroupKind::World:
      return 0;
    case GroupKind::Tp:
      place.tp = 0;
      break;
    case GroupKind::Cp:
      place.cp = 0;
      break;
    case GroupKind::Dp:
      place.dp = 0;
      break;
    case GroupKind::Pp:
      place.pp = 0;
      break;
    case GroupKind::Shard:
      place.dp -= place.dp % grid.shard();
      break;
    case GroupKind::Replica:
      place.dp %= grid.shard();
      break;
    case GroupKind::Data:
      place.dp = place.cp = 0;
      break;
    case GroupKind::Model:
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

Groups make_groups(World& world, const Grid& grid) {
  check_grid(grid, world.size());
  const auto make = [&](GroupKind kind) {
    return world.split(to_string(kind), group_leader(grid, kind, world.rank()), world.rank());
  };
  // Members are made in the order they are written: the same on all ranks.
  return Groups{.world = make(GroupKind::World),
                .tp = make(GroupKind::Tp),
                .cp = make(GroupKind::Cp),
                .dp = make(GroupKind::Dp),
                .pp = make(GroupKind::Pp),
                .shard = make(GroupKind::Shard),
                .replica = make(GroupKind::Replica),
                .data = make(GroupKind::Data),
                .model = make(GroupKind::Model)};
}

}  // namespace kintsugi
