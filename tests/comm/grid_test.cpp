#include "comm/grid.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/errors.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

const std::vector<GroupKind> kKinds = {GroupKind::World,   GroupKind::Tp,   GroupKind::Cp,
                                       GroupKind::Dp,      GroupKind::Pp,   GroupKind::Shard,
                                       GroupKind::Replica, GroupKind::Data, GroupKind::Model};

using Members = std::vector<int>;

// Written out by hand: 2 x 1 x 4 x 2 ranks, shards of 2.
TEST(Grid, GroupsOfSixteenRanks) {
  const Grid grid{.tp = 2, .cp = 1, .dp = 4, .pp = 2, .shard_group = 2};
  EXPECT_EQ(place_of(grid, 13), (Place{.tp = 1, .cp = 0, .dp = 2, .pp = 1}));
  EXPECT_EQ(group_members(grid, GroupKind::Tp, 13), (Members{12, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Cp, 13), (Members{13}));
  EXPECT_EQ(group_members(grid, GroupKind::Dp, 13), (Members{9, 11, 13, 15}));
  EXPECT_EQ(group_members(grid, GroupKind::Pp, 13), (Members{5, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Shard, 13), (Members{13, 15}));
  EXPECT_EQ(group_members(grid, GroupKind::Shard, 11), (Members{9, 11}));
  EXPECT_EQ(group_members(grid, GroupKind::Replica, 13), (Members{9, 13}));
  EXPECT_EQ(group_members(grid, GroupKind::Model, 13), (Members{4, 5, 12, 13}));
}

TEST(Grid, ContextRanksStandBetweenTensorAndData) {
  const Grid grid{.tp = 2, .cp = 2, .dp = 2, .pp = 1};
  EXPECT_EQ(group_members(grid, GroupKind::Cp, 5), (Members{5, 7}));
  EXPECT_EQ(group_members(grid, GroupKind::Dp, 5), (Members{1, 5}));
  EXPECT_EQ(group_members(grid, GroupKind::Shard, 5), (Members{1, 5}));
  EXPECT_EQ(group_members(grid, GroupKind::Data, 5), (Members{1, 3, 5, 7}));
  EXPECT_EQ(group_members(grid, GroupKind::Replica, 5), (Members{5}));
}

int expected_size(const Grid& grid, GroupKind kind) {
  switch (kind) {
    case GroupKind::World:
      return grid.tp * grid.cp * grid.dp * grid.pp;
    case GroupKind::Tp:
      return grid.tp;
    case GroupKind::Cp:
      return grid.cp;
    case GroupKind::Dp:
      return grid.dp;
    case GroupKind::Pp:
      return grid.pp;
    case GroupKind::Shard:
      return grid.shard();
    case GroupKind::Replica:
      return grid.dp / grid.shard();
    case GroupKind::Data:
      return grid.dp * grid.cp;
    case GroupKind::Model:
      return grid.tp * grid.pp;
  }
  return 0;
}

// Every kind cuts the world into disjoint groups of the right size, and a rank is where it says.
TEST(Grid, EveryKindIsAPartition) {
  for (const int tp : {1, 3})
    for (const int cp : {1, 2})
      for (const int dp : {1, 4, 6})
        for (const int pp : {1, 2})
          for (const int shard : {0, 1, 2}) {
            if (shard != 0 && dp % shard != 0) continue;
            const Grid grid{tp, cp, dp, pp, shard};
            for (const GroupKind kind : kKinds) {
              for (int rank = 0; rank < grid.world(); ++rank) {
                ASSERT_EQ(rank_of(grid, place_of(grid, rank)), rank);
                const Members members = group_members(grid, kind, rank);
                ASSERT_EQ(static_cast<int>(members.size()), expected_size(grid, kind));
                ASSERT_TRUE(std::count(members.begin(), members.end(), rank));
                for (const int member : members)
                  ASSERT_EQ(group_members(grid, kind, member), members);
              }
            }
          }
}

TEST(Grid, AWrongGridIsTheUsersMistake) {
  EXPECT_NE(user_error_of([] { check_grid({.tp = 2, .dp = 3}, 8); }).find("6 ranks"),
            std::string::npos);
  EXPECT_NE(user_error_of([] { check_grid({.dp = 6, .shard_group = 4}, 6); }).find("shard_group 4"),
            std::string::npos);
  user_error_of([] { check_grid({.tp = 0}, 0); });
  user_error_of([] { check_grid({.tp = -2, .dp = -2}, 4); });
  check_grid({.tp = 2, .dp = 4, .shard_group = 2}, 8);
}

// The communicators hold the ranks that the pure functions name, in that order.
TEST(Grid, CommunicatorsFollowTheGrid) {
  const Grid grid{.tp = 2, .cp = 2, .dp = 4, .pp = 1, .shard_group = 2};
  run_ranks(grid.world(), [&](World& world) {
    const Groups groups = make_groups(world, grid);
    const std::vector<std::pair<GroupKind, Communicator*>> pairs = {
        {GroupKind::World, groups.world.get()}, {GroupKind::Tp, groups.tp.get()},
        {GroupKind::Cp, groups.cp.get()},       {GroupKind::Dp, groups.dp.get()},
        {GroupKind::Pp, groups.pp.get()},       {GroupKind::Shard, groups.shard.get()},
        {GroupKind::Data, groups.data.get()},   {GroupKind::Replica, groups.replica.get()},
        {GroupKind::Model, groups.model.get()}};
    for (const auto& [kind, group] : pairs) {
      EXPECT_EQ(group->name(), to_string(kind));
      const Members expected = group_members(grid, kind, world.rank());
      Members found(group->size(), -1);
      std::int32_t mine = world.rank();
      group->wait(group->all_gather(Tensor(found.data(), DType::I32, {group->size()}),
                                    Tensor(&mine, DType::I32, {1})));
      EXPECT_EQ(found, expected) << group->name();
      EXPECT_EQ(found[group->rank()], world.rank());
    }
  });
}

}  // namespace
}  // namespace kintsugi
