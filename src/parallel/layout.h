#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/grid.h"
#include "model/config.h"
#include "parallel/schedule.h"

namespace kintsugi {

// How a run asks to be spread; what is left open is filled in from the number of ranks.
struct LayoutRequest {
  std::int64_t tp = 1, cp = 1, pp = 1;
  std::optional<std::int64_t> dp = {};  // none: whatever ranks are left
  std::int64_t chunks = 1;
  PipelineKind schedule = PipelineKind::OneForwardOneBackward;
  std::vector<int> split = {};  // layers per part of a pipeline; empty: balanced
  bool sequence_parallel = false;
  std::int64_t zero = 0;
  std::int64_t shard_group = 0;  // data ranks that share one sharded copy; 0: all
  std::int64_t batch = 1;        // sequences per step
  std::int64_t micro = 1;        // sequences per forward pass on one rank
  std::int64_t length = 1;       // tokens per sequence
  ModelConfig model = {};
};

// The grid of a job of `ranks`. Whatever does not divide is a UserError that names the nearest
// choices that do.
Grid fit_layout(const LayoutRequest& request, int ranks);

// tp, pp and zero for `ranks` in nodes of `node`: the least cutting with which a rank's memory
// suffices, matrices before layers, matrices inside a node only; the rest are data ranks. `fits`
// tells whether a request's memory does. UserError if none does.
LayoutRequest choose_layout(LayoutRequest request, int ranks, int node,
                            const std::function<bool(const LayoutRequest&, const Grid&)>& fits);

}  // namespace kintsugi
