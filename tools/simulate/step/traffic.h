#pragma once

#include <vector>

#include "plan/search/step_replay.h"

namespace kintsugi {

// Between two nodes: the messages of all their GPUs together. From a node to itself: of one GPU,
// for all do the same.
struct NodeFlow {
  int from = 0, to = 0;
  double bytes = 0;
  double gb_s = 0;  // of the adapters of the GPUs that send, or of a link within the node
};
// Within one node, which stands for all.
struct GpuFlow {
  int from = 0, to = 0;
  double bytes = 0;
};
// Messages that are sent at the same time.
struct Traffic {
  std::vector<NodeFlow> network = {};
  std::vector<GpuFlow> inside = {};
  double latency_s = 0;  // of all hops, one after the other
};

// The ranks of one stage, or all.
struct RankRange {
  std::int64_t first = 0, end = 0;
};

// The messages of all groups of these ranks, by a ring or a direct exchange. The steps of a ring
// are equal: they are one step with the bytes of all.
Traffic ring_traffic(const StepReplay& replay, const StepReplay::Call& call, RankRange ranks);
// An all-reduce in steps whose number grows with the logarithm of the group's size, one after the
// other: recursive halving and doubling, or a tree if the size is not a power of two. Empty for
// other collectives.
std::vector<Traffic> logarithmic_traffic(const StepReplay& replay, const StepReplay::Call& call,
                                         RankRange ranks);
// From each rank of a stage to the rank at the same place in another one.
Traffic message_traffic(const StepReplay& replay, int from_stage, int to_stage);

}  // namespace kintsugi
