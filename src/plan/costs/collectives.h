#pragma once

#include "backend/operation_trace.h"
#include "plan/machines/machine.h"

namespace kintsugi {

// A group of `size` ranks with rank numbers `stride` apart. Ranks are numbered node by node.
struct GroupSpread {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

// The bandwidth and latency of a group on the machine.
struct GroupLinks {
  std::int64_t size = 1;
  std::int64_t nodes = 1;                       // with ranks of the group
  double gb_s = 0;                              // per rank in a ring
  double ring_us = 0;                           // latency once around the ring
  double tree_us = 0;                           // latency up and down a tree of nodes
  double neighbour_gb_s = 0, neighbour_us = 0;  // between neighbours
  double inside_gb_s = 0, across_gb_s = 0;      // per rank: in a node, and to other nodes
};
GroupLinks links_of(const Machine& machine, const GroupSpread& group);

// Seconds of one collective. `bytes` is the size of the full tensor; the faster of ring and tree.
double collective_s(const GroupLinks& links, Collective collective, double bytes);

}  // namespace kintsugi
