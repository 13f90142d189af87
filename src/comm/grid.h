#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace kintsugi {

// How the ranks of a job are numbered: tp fastest, then cp, then dp, then pp, so that the ranks
// that talk most are neighbours on a node.
struct Grid {
  int tp = 1;
  int cp = 1;
  int dp = 1;
  int pp = 1;
  int shard_group = 0;  // dp ranks that share one sharded copy; 0: all of them

  int world() const { return tp * cp * dp * pp; }
  int shard() const { return shard_group == 0 ? dp : shard_group; }
  bool operator==(const Grid&) const = default;
};

struct Place {
  int tp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  bool operator==(const Place&) const = default;
};

enum class GroupKind {
  World,
  Tp,
  Cp,
  Dp,
  Pp,
  Shard,    // a block of shard() neighbours of a dp group, which share one copy
  Replica,  // the same place in every block of a dp group
  Data,     // dp x cp: the ranks that hold the same part of the model
  Model,    // tp x pp: the ranks that hold one whole model
};
const char* to_string(GroupKind kind);  // "tp", …: the names of the communicators

// UserError unless the extents are positive, make up world_size ranks, and dp is whole blocks.
void check_grid(const Grid& grid, int world_size);

Place place_of(const Grid& grid, int rank);
int rank_of(const Grid& grid, const Place& place);

// The lowest rank of the group that a rank belongs to: what tells the groups of a kind apart.
int group_leader(const Grid& grid, GroupKind kind, int rank);
// The world's ranks of that group, rising.
std::vector<int> group_members(const Grid& grid, GroupKind kind, int rank);

struct Groups {
  std::unique_ptr<Communicator> world, tp, cp, dp, pp, shard, replica, data, model;
};
// Every rank of the world calls it. UserError if the grid does not fit the world.
Groups make_groups(World& world, const Grid& grid);

}  // namespace kintsugi
