#include "comm/grid.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/errors.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

using Members = std::vector<int>;

// Written out by hand: 2 x 1 x 4 x 2 ranks, shards of 2.
TEST(Grid, GroupsOfSixteenRanks) {
  const Grid grid{.tp = 2, .cp = 1, .dp = 4, .pp = 2, .shard_group = 2, .kv_copies = 2};
  EXPECT_EQ(coordinates_of(grid, 13), (Coordinates{.tp = 1, .cp = 0, .dp = 2, .pp = 1}));
  EXPECT_EQ(group_members(grid, GroupKind::Tp, 13), (Members{12, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Cp, 13), (Members{13}));
  EXPECT_EQ(group_members(grid, GroupKind::Pp, 13), (Members{5, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Kv, 13), (Members{12, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Tied, 13), (Members{5, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Shard, 13), (Members{13, 15}));
  EXPECT_EQ(group_members(grid, GroupKind::Shard, 11), (Members{9, 11}));
  EXPECT_EQ(group_members(grid, GroupKind::Replica, 13), (Members{9, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Copy, 13), (Members{4, 5, 6, 7, 12, 13, 14, 15}));
}

// Context ranks hold the same weights as data ranks: a copy is sharded over both.
TEST(Grid, ContextRanksAreBetweenTensorAndDataRanks) {
  const Grid grid{.tp = 2, .cp = 2, .dp = 2, .pp = 1};
  EXPECT_EQ(group_members(grid, GroupKind::Cp, 5), (Members{5, 7}));
  EXPECT_EQ(group_members(grid, GroupKind::Shard, 5), (Members{1, 3, 5, 7}));
  EXPECT_EQ(group_members(grid, GroupKind::Replica, 5), (Members{5}));
  const Grid halves{.tp = 2, .cp = 2, .dp = 2, .pp = 1, .shard_group = 2};
  EXPECT_EQ(group_members(halves, GroupKind::Shard, 5), (Members{5, 7}));
  EXPECT_EQ(group_members(halves, GroupKind::Replica, 5), (Members{1, 5}));
  EXPECT_EQ(group_members(halves, GroupKind::Copy, 5), (Members{4, 5, 6, 7}));
}

// A shard group may contain some of the context ranks of a data rank: 4 context ranks, 3 data
// ranks, shard groups of 6.
TEST(Grid, ShardGroupsSpanContextAndDataRanks) {
  const Grid grid{.tp = 1, .cp = 4, .dp = 3, .pp = 1, .shard_group = 6};
  EXPECT_EQ(group_members(grid, GroupKind::Shard, 7), (Members{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(group_members(grid, GroupKind::Replica, 7), (Members{1, 7}));
  EXPECT_EQ(group_members(grid, GroupKind::Cp, 7), (Members{4, 5, 6, 7}));
}

TEST(Grid, NeighboursShareKeysAndValues) {
  const Grid grid{.tp = 8, .cp = 1, .dp = 1, .pp = 2, .kv_copies = 4};
  EXPECT_EQ(group_members(grid, GroupKind::Kv, 2), (Members{0, 1, 2, 3}));
  EXPECT_EQ(group_members(grid, GroupKind::Kv, 15), (Members{12, 13, 14, 15}));
}

// The first and the last of four stages share the embedding table; the inner stages do not.
TEST(Grid, TheFirstAndTheLastStageAreTied) {
  const Grid grid{.tp = 1, .cp = 1, .dp = 2, .pp = 4};
  EXPECT_EQ(group_members(grid, GroupKind::Tied, 1), (Members{1, 7}));
  EXPECT_EQ(group_members(grid, GroupKind::Tied, 6), (Members{0, 6}));
  EXPECT_EQ(group_members(grid, GroupKind::Tied, 3), (Members{3}));
  EXPECT_EQ(group_members(grid, GroupKind::Tied, 4), (Members{4}));
}

// Data ranks 0 to 7 with tp 2: a shard group of 4 has two copies of the experts on 2 ranks, of
// which ZeRO makes one.
TEST(Grid, ExpertsOnDataRanks) {
  const Grid grid{.tp = 2, .dp = 8, .shard_group = 4, .experts = 2};
  EXPECT_EQ(group_members(grid, GroupKind::Experts, 5), (Members{5, 7}));
  EXPECT_EQ(group_members(grid, GroupKind::ExpertsShard, 5), (Members{1, 5}));
  EXPECT_EQ(group_members(grid, GroupKind::ExpertsReplica, 5), (Members{5, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Copy, 5), (Members{0, 1, 2, 3, 4, 5, 6, 7}));
  const Grid unsharded{.dp = 8, .shard_group = 1, .experts = 4};
  EXPECT_EQ(group_members(unsharded, GroupKind::Experts, 5), (Members{4, 5, 6, 7}));
  EXPECT_EQ(group_members(unsharded, GroupKind::ExpertsShard, 5), (Members{5}));
  EXPECT_EQ(group_members(unsharded, GroupKind::ExpertsReplica, 5), (Members{1, 5}));
  EXPECT_EQ(group_members(unsharded, GroupKind::Copy, 5), (Members{4, 5, 6, 7}));
}

int expected_size(const Grid& grid, GroupKind kind, const Coordinates& coordinates) {
  switch (kind) {
    case GroupKind::World:
    case GroupKind::Checkpoint:
      return grid.tp * grid.cp * grid.dp * grid.pp;
    case GroupKind::HostTp:
    case GroupKind::Tp:
      return grid.tp;
    case GroupKind::Cp:
      return grid.cp;
    case GroupKind::Pp:
      return grid.pp;
    case GroupKind::Kv:
      return grid.kv_copies;
    case GroupKind::Tied:
      return grid.pp > 1 && (coordinates.pp == 0 || coordinates.pp == grid.pp - 1) ? 2 : 1;
    case GroupKind::Shard:
      return grid.shard();
    case GroupKind::Replica:
      return grid.dp * grid.cp / grid.shard();
    case GroupKind::Copy:
      return grid.tp * grid.pp * std::max(grid.shard(), grid.experts);
    case GroupKind::Experts:
      return grid.experts;
    case GroupKind::ExpertsShard:
      return grid.experts == 1 ? 1 : std::max(1, grid.shard() / grid.experts);
    case GroupKind::ExpertsReplica:
      return grid.experts == 1 ? 1 : grid.dp * grid.cp / std::max(grid.shard(), grid.experts);
  }
  return 0;
}

// Every kind partitions the world into groups of the right size, and GroupMembership is correct.
TEST(Grid, EveryKindIsAPartition) {
  for (const int tp : {1, 4})
    for (const int cp : {1, 2})
      for (const int dp : {1, 4, 6})
        for (const int pp : {1, 2, 3})
          for (const int shard : {0, 1, 2}) {
            for (const int experts : {1, 2, 4}) {
              Grid grid{tp, cp, dp, pp, shard, tp == 1 ? 1 : 2};
              if (cp * dp % grid.shard() != 0) continue;
              grid.experts = experts;
              if (grid.data() % grid.copy() != 0 ||
                  grid.copy() % std::min(grid.shard(), grid.experts) != 0)
                continue;
              for (const auto& [kind, name, on_host, position] : group_specs()) {
                for (int rank = 0; rank < grid.world(); ++rank) {
                  ASSERT_EQ(rank_of(grid, coordinates_of(grid, rank)), rank);
                  const Members members = group_members(grid, kind, rank);
                  const GroupMembership actual = position(grid, coordinates_of(grid, rank));
                  ASSERT_EQ(actual.size, expected_size(grid, kind, coordinates_of(grid, rank)))
                      << name;
                  ASSERT_EQ(static_cast<int>(members.size()), actual.size) << name;
                  ASSERT_EQ(members.front(), actual.leader) << name;
                  ASSERT_EQ(members[static_cast<std::size_t>(actual.rank)], rank) << name;
                  if (actual.size > 1 && kind != GroupKind::Copy) {
                    ASSERT_EQ(members.back(), actual.leader + actual.stride * (actual.size - 1))
                        << name;
                  }
                  for (const int member : members)
                    ASSERT_EQ(group_members(grid, kind, member), members);
                }
              }
            }
          }
}

TEST(Grid, AWrongGridIsTheUsersMistake) {
  EXPECT_NE(user_error_of([] { check_grid({.tp = 2, .dp = 3}, 8); }).find("6 ranks"),
            std::string::npos);
  EXPECT_NE(user_error_of([] { check_grid({.dp = 6, .shard_group = 4}, 6); }).find("shard_group 4"),
            std::string::npos);
  EXPECT_NE(user_error_of([] {
              check_grid({.cp = 3, .dp = 2, .shard_group = 4}, 6);
            }).find("does not divide cp 3 x dp 2"),
            std::string::npos);
  check_grid({.cp = 3, .dp = 2, .shard_group = 3}, 6);
  user_error_of([] { check_grid({.tp = 0}, 0); });
  user_error_of([] { check_grid({.tp = -2, .dp = -2}, 4); });
  check_grid({.tp = 2, .dp = 4, .shard_group = 2}, 8);
}

TEST(Grid, KindsAreFoundByTheirNames) {
  for (const GroupSpec& spec : group_specs()) {
    EXPECT_EQ(parse_group_kind(spec.name), spec.kind);
    EXPECT_STREQ(to_string(spec.kind), spec.name);
  }
  EXPECT_THROW(parse_group_kind("ep"), Failure);
}

// The communicators have the ranks of group_members(), in that order.
TEST(Grid, CommunicatorsFollowTheGrid) {
  const Grid grid{.tp = 2, .cp = 2, .dp = 2, .pp = 3, .shard_group = 2, .kv_copies = 2};
  run_ranks(grid.world(), [&](World& world) {
    const Groups groups = make_groups(world, grid);
    EXPECT_EQ(groups.coordinates, coordinates_of(grid, world.rank()));
    EXPECT_EQ(groups.is_first(), world.rank() == 0);
    EXPECT_EQ(groups.ranks(), 24);
    for (const GroupSpec& spec : group_specs()) {
      Communicator* const group = &groups[spec.kind];
      EXPECT_EQ(group->name(), spec.name);
      const Members expected = group_members(grid, spec.kind, world.rank());
      Members found(group->size(), -1);
      std::int32_t own = world.rank();
      group->wait(group->all_gather(Tensor(found.data(), DType::I32, {group->size()}),
                                    Tensor(&own, DType::I32, {1})));
      EXPECT_EQ(found, expected) << group->name();
      EXPECT_EQ(found[group->rank()], world.rank());
    }
  });
}

// The groups for planning have the same ranks and sizes but cannot communicate.
TEST(Grid, PlannedGroupsAreThoseOfTheJob) {
  const Grid grid{.tp = 4, .cp = 2, .dp = 3, .pp = 2, .shard_group = 3, .kv_copies = 2};
  for (int rank = 0; rank < grid.world(); ++rank) {
    const Groups groups = planned_groups(grid, coordinates_of(grid, rank));
    EXPECT_EQ(groups.grid, grid);
    EXPECT_EQ(groups.coordinates, coordinates_of(grid, rank));
    for (const GroupSpec& spec : group_specs()) {
      Communicator* const group = &groups[spec.kind];
      const Members members = group_members(grid, spec.kind, rank);
      ASSERT_EQ(group->size(), static_cast<int>(members.size())) << spec.name;
      ASSERT_EQ(members[static_cast<std::size_t>(group->rank())], rank) << spec.name;
      std::int32_t value = 0;
      EXPECT_THROW(group->all_reduce(Tensor(&value, DType::I32, {1}), ReduceOp::Sum), Failure);
    }
  }
  EXPECT_THROW(planned_groups({.dp = 2}, {.dp = 2}), Failure);
}

}  // namespace
}  // namespace kintsugi
