#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
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
  bool operator==(const Grid& o) const {
    return std::tuple(tp, cp, dp, pp, shard(), kv_copies) ==
           std::tuple(o.tp, o.cp, o.dp, o.pp, o.shard(), o.kv_copies);
  }
};

struct Place {
  int tp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  bool operator==(const Place&) const = default;
};

// In the order in which they are made.
enum class GroupKind : std::uint8_t {
  World,
  HostTp,
  Tp,
  Cp,
  Pp,
  Kv,       // tp neighbours that hold the same key and value heads
  Tied,     // of a pp group, the first and the last rank; the others are alone
  Shard,    // a block of shard() data neighbours, which share one copy
  Replica,  // the same rank of every block
  Copy,     // tp x pp x shard: the ranks that hold one copy of the whole model together
};
inline constexpr std::size_t kGroupKinds = 10;

// The group of a kind that a rank belongs to.
struct GroupPosition {
  int leader = 0;  // the world's number of its lowest rank: what tells the groups of a kind apart
  int rank = 0, size = 1;
  int stride = 1;  // between neighbours, in the world's numbers
};

// All that is to be said about a kind: a new one is an entry in this table.
struct GroupSpec {
  GroupKind kind;
  const char* name;  // of its communicators
  bool on_host;      // for host memory: numbers, texts, checkpoints; else for the device's
  GroupPosition (*position)(const Grid& grid, const Place& place);
};
const std::array<GroupSpec, kGroupKinds>& group_specs();  // by kind
const char* to_string(GroupKind kind);
GroupKind parse_group_kind(std::string_view name);  // Failure where none has it

// UserError unless the extents are positive, make up world_size ranks, and dp is whole blocks.
void check_grid(const Grid& grid, int world_size);

Place place_of(const Grid& grid, int rank);
int rank_of(const Grid& grid, const Place& place);

GroupPosition group_position(const Grid& grid, GroupKind kind, const Place& place);
// The world's ranks of the group that a rank belongs to, rising.
std::vector<int> group_members(const Grid& grid, GroupKind kind, int rank);

// The groups that one rank belongs to, by kind.
struct Groups {
  Grid grid;
  Place place;
  int node_ranks = 1;  // that share this rank's host
  std::array<std::unique_ptr<Communicator>, kGroupKinds> communicators = {};

  Communicator& operator[](GroupKind kind) const {
    return *communicators[static_cast<std::size_t>(kind)];
  }
  int ranks() const { return grid.world(); }
  bool is_first() const { return (*this)[GroupKind::World].rank() == 0; }
  // Of the ranks with the same sequences, one counts them.
  bool counts_sequences() const { return place.tp == 0 && place.cp == 0 && place.pp == 0; }
};
using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(const GroupSpec&, const GroupPosition&)>;
// Of the rank at `place`, each made by `make`.
Groups make_groups(const Grid& grid, const Place& place, const MakeCommunicator& make);
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
