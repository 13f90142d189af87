#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/grid.h"
#include "model/config.h"
#include "model/recompute.h"
#include "parallel/schedule.h"

namespace kintsugi {

// How a run is spread over its ranks: the only description of it. The configuration reads it, the
// planner searches it, the engine is built from it.
struct Layout {
  int tp = 1, cp = 1, pp = 1;
  int dp = 1;  // 0: whatever ranks are left, which fit_layout fills in
  int chunks = 1;
  PipelineKind schedule = PipelineKind::OneForwardOneBackward;
  std::vector<int> split = {};   // layers of each part of a pipeline; empty: balanced
  std::int64_t micro_batch = 1;  // sequences per forward on one rank
  int zero = 0;
  int shard_group = 0;  // data ranks that share one sharded copy; 0: all
  bool sequence_parallel = false;
  Recompute recompute = Recompute::None;
  int recompute_every = 1;  // of layers 0, n, 2 n, …

  int ranks() const { return tp * cp * pp * dp; }
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout);  // "tp4 pp16 dp2 micro1 zero1 …"

// What is trained, as far as a layout must divide it. The model must outlive it.
struct Workload {
  const ModelConfig& model;
  std::int64_t batch = 1;   // sequences per step
  std::int64_t length = 1;  // tokens per sequence
};

// The layout on `ranks`, with dp filled in. Whatever does not divide is a UserError that names the
// nearest choices that do.
Layout fit_layout(Layout layout, const Workload& work, int ranks);

// Of a layout that fits.
Grid grid_of(const Layout& layout, const ModelConfig& model);
std::int64_t micro_batches_per_step(const Layout& layout, std::int64_t batch);

// tp, pp and zero for `ranks` in nodes of `node`: the least cutting with which a rank's memory
// suffices, matrices before layers, matrices inside a node only; the rest are data ranks. `fits`
// tells whether the memory of a layout, with its dp, does. What the layout leaves open stays open.
// UserError if none fits.
Layout choose_layout(const Layout& layout, const Workload& work, int ranks, int node,
                     const std::function<bool(const Layout&)>& fits);

}  // namespace kintsugi
