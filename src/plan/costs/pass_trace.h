#pragma once

#include <array>
#include <cstdint>

#include "backend/operation_trace.h"
#include "plan/search/job.h"
#include "tensor/arena.h"

namespace kintsugi {

using RegionBytes = std::array<std::int64_t, kRegions>;

RegionBytes bytes_by_region(const Arena& arena);
RegionBytes operator+(const RegionBytes& a, const RegionBytes& b);
RegionBytes operator-(const RegionBytes& a, const RegionBytes& b);
RegionBytes operator*(std::int64_t times, const RegionBytes& a);
std::int64_t total(const RegionBytes& bytes);

// What a micro-batch asks for on one rank: the engine's own layers, run in the sim world.
struct BlockTrace {
  OperationTrace forward;
  OperationTrace backward;  // with whatever is recomputed
  OperationTrace backward_input, backward_weight;
  RegionBytes stash = {};  // of one micro-batch, without the block's input
};
struct LayerTraces {
  BlockTrace plain;       // keeps everything
  BlockTrace recomputed;  // as the layout's mode has it
};
struct PassTrace : LayerTraces {
  LayerTraces sliding;  // of layers with a window, where there are any; they take the same memory
  OperationTrace embedding_forward, embedding_backward;
  // A head works in chunks of tokens, all alike: of a long micro-batch only some are traced. Its
  // cost is head + head_extra x (head - head_half).
  OperationTrace head, head_half;
  double head_extra = 0;

  std::int64_t boundary = 0;  // bytes of a residual stream: a block's input
  RegionBytes kept = {};      // of a block, between the halves of a backward
  RegionBytes scratch = {};   // shared by all stages of a rank
  RegionBytes embedding_stash = {};
  RegionBytes head_memory = {};
  std::int64_t tokens = 0;  // of a micro-batch on this rank
};

// Of tp, cp, sequence_parallel, micro_batch and recompute of the layout; the rest does not matter.
PassTrace trace_pass(const PlanJob& job, const Layout& layout);

}  // namespace kintsugi
