#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"

namespace kintsugi {

// How the ranks of a job are numbered: tp fastest, then cp, then dp, then pp, so that the ranks
// that talk most are neighbours on a node.
struct Grid {
  int tp = 1;
  int cp = 1;
  int dp = 1;
  int pp = 1;
  int shard_group = 0;  // data ranks (cp x dp) that share one sharded copy; 0: all of them
  int kv_copies = 1;    // neighbouring tp ranks that hold the same key and value heads

  int world() const { return tp * cp * dp * pp; }
  int data() const { return cp * dp; }  // ranks that hold the same part of the model
  int shard() const { return shard_group == 0 ? data() : shard_group; }
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
  Pp,
  Kv,       // tp neighbours that hold the same key and value heads
  Tied,     // of a pp group, the first and the last rank; the others are alone
  Shard,    // a block of shard() data neighbours, which share one copy
  Replica,  // the same place in every block
  Copy,     // tp x pp x shard: the ranks that hold one copy of the whole model together
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

// The groups that one rank belongs to.
struct Groups {
  Grid grid;
  Place place;
  int node_ranks = 1;  // that share this rank's host
  // For host memory: numbers, texts, checkpoints.
  std::unique_ptr<Communicator> world, host_tp;
  // For device memory.
  std::unique_ptr<Communicator> tp, cp, pp, kv, tied, shard, replica, copy;

  int ranks() const { return grid.world(); }
  bool is_first() const { return world->rank() == 0; }
  // Of the ranks with the same sequences, one counts them.
  bool counts_sequences() const { return place.tp == 0 && place.cp == 0 && place.pp == 0; }
};
// Every rank calls it, with the ranks' worlds for host and for device memory. UserError if the grid
// does not fit them.
Groups make_groups(World& hosts, World& devices, const Grid& grid);
inline Groups make_groups(World& world, const Grid& grid) {
  return make_groups(world, world, grid);
}
// Of the rank at `place` in a job that only exists on paper: for a plan. Nothing can be sent.
Groups planned_groups(const Grid& grid, const Place& place);
// Of one rank, whose tensors are the backend's.
Groups groups_of_one(Backend& backend);

}  // namespace kintsugi
