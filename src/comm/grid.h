#pragma once

#include <algorithm>
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

class FlightRecorder;

// The numbering of the ranks: tp varies fastest, then cp, then dp, then pp, so that the ranks that
// communicate most are on the same node.
struct Grid {
  int tp = 1;
  int cp = 1;
  int dp = 1;
  int pp = 1;
  int shard_group = 0;  // data ranks (cp x dp) per sharded copy; 0: all data ranks
  int kv_copies = 1;    // adjacent tp ranks that hold the same key and value heads
  int experts = 1;      // adjacent data ranks that hold different experts

  int world() const { return tp * cp * dp * pp; }
  int data() const { return cp * dp; }  // ranks with the same tp and pp
  int shard() const { return shard_group == 0 ? data() : shard_group; }
  int copy() const { return std::max(shard(), experts); }  // data ranks that hold one copy of all
  bool operator==(const Grid& o) const {
    return std::tuple(tp, cp, dp, pp, shard(), kv_copies, experts) ==
           std::tuple(o.tp, o.cp, o.dp, o.pp, o.shard(), o.kv_copies, o.experts);
  }
};

struct Coordinates {
  int tp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  bool operator==(const Coordinates&) const = default;
};

// In the order in which the groups are created.
enum class GroupKind : std::uint8_t {
  World,
  Checkpoint,  // all ranks; only for saves, which may run beside the training
  HostTp,      // the same for the ranks of a tensor group
  Tp,
  Cp,
  Pp,
  Kv,       // adjacent tp ranks that hold the same key and value heads
  Tied,     // the first and the last rank of a pp group; groups of one for the others
  Shard,    // shard() adjacent data ranks, over which one copy is sharded
  Replica,  // the ranks with the same shard in all Shard groups
  Copy,     // tp x pp x copy(): the ranks that together hold one copy of the model
  // Only if experts are spread over data ranks; otherwise groups of one:
  Experts,         // adjacent data ranks that together hold the experts of a layer
  ExpertsShard,    // the ranks of a Shard group that hold the same experts
  ExpertsReplica,  // the ranks with the same place in all Copy groups
};
inline constexpr std::size_t kGroupKinds = 14;

// The group of a kind that a rank belongs to.
struct GroupMembership {
  int leader = 0;  // world rank of its lowest rank; identifies the group among those of its kind
  int rank = 0, size = 1;
  int stride = 1;  // between adjacent ranks, in world ranks
};

// Defines a kind of group. To add a kind, add an entry to the table in grid.cpp.
struct GroupSpec {
  GroupKind kind;
  const char* name;  // name of its communicators
  bool on_host;      // communicates host memory (scalars, texts, checkpoints), not device memory
  GroupMembership (*position)(const Grid& grid, const Coordinates& coordinates);
};
const std::array<GroupSpec, kGroupKinds>& group_specs();  // by kind
const char* to_string(GroupKind kind);
GroupKind parse_group_kind(std::string_view name);  // throws Failure for an unknown name

// Throws UserError unless the extents are positive, their product is world_size, shard_group and
// experts divide cp x dp, and one of them the other.
void check_grid(const Grid& grid, int world_size);

Coordinates coordinates_of(const Grid& grid, int rank);
int rank_of(const Grid& grid, const Coordinates& coordinates);

GroupMembership group_position(const Grid& grid, GroupKind kind, const Coordinates& coordinates);
// The world ranks of the group that a rank belongs to, in ascending order.
std::vector<int> group_members(const Grid& grid, GroupKind kind, int rank);

// The groups that one rank belongs to, by kind.
struct Groups {
  Grid grid;
  Coordinates coordinates;
  int node_ranks = 1;                  // number of ranks on this node
  FlightRecorder* recorder = nullptr;  // of this rank's calls, if there is one
  std::array<std::unique_ptr<Communicator>, kGroupKinds> communicators = {};

  Communicator& operator[](GroupKind kind) const {
    return *communicators[static_cast<std::size_t>(kind)];
  }
  int ranks() const { return grid.world(); }
  bool is_first() const { return (*this)[GroupKind::World].rank() == 0; }
  // True on exactly one of the ranks that have the same sequences.
  bool counts_sequences() const {
    return coordinates.tp == 0 && coordinates.cp == 0 && coordinates.pp == 0;
  }
};
using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(const GroupSpec&, const GroupMembership&)>;
// The groups of the rank at `coordinates`, each created by `make`.
Groups make_groups(const Grid& grid, const Coordinates& coordinates, const MakeCommunicator& make);
// All ranks call it. `hosts` communicates host memory, `devices` device memory. Throws UserError if
// the grid does not match the number of ranks.
Groups make_groups(World& hosts, World& devices, const Grid& grid);
inline Groups make_groups(World& world, const Grid& grid) {
  return make_groups(world, world, grid);
}
// The groups of the rank at `coordinates` for planning only: any communication throws Failure.
Groups planned_groups(const Grid& grid, const Coordinates& coordinates);
// The groups of a job with one rank, for tensors of `backend`.
Groups single_rank_groups(Backend& backend);

}  // namespace kintsugi
