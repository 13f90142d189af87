#pragma once

#include "backend/operation_trace.h"
#include "plan/machines/machine.h"

namespace kintsugi {

// Ranks `stride` apart, numbered node by node.
struct GroupSpread {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

// How a group lies on the machine and what its ranks get.
struct GroupLinks {
  std::int64_t size = 1;
  std::int64_t nodes = 1;                       // that it touches
  double gb_s = 0;                              // per rank around the ring
  double ring_us = 0;                           // one way around
  double tree_us = 0;                           // up and down a tree of nodes
  double neighbour_gb_s = 0, neighbour_us = 0;  // from one rank to the next
};
GroupLinks links_of(const Machine& machine, const GroupSpread& group);

// Seconds of one collective of `bytes` (the whole tensor) by the better of ring and tree.
double collective_s(const GroupLinks& links, TracedOperation::Transfer transfer, double bytes);

// The chance that a job on so many GPUs meets slow messages.
double stall_chance(const Machine& machine, std::int64_t gpus);

}  // namespace kintsugi
