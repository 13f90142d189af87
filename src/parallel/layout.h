#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/grid.h"
#include "model/config.h"
#include "model/declaration.h"
#include "model/shard.h"
#include "model/stage.h"
#include "parallel/schedule.h"

namespace kintsugi {

// The number of layers of each of `chunks` pipeline chunks (stages × chunks per rank). Minimizes
// the time of the slowest chunk; the LM head counts as many layers as it takes time. Among equals,
// chunks without embedding and head get more layers.
std::vector<int> balanced_split(const ModelConfig& config, int chunks);
// Returns the given split, or the balanced one if it is empty. Throws UserError unless the split
// has `chunks` numbers of at least 1 that add up to all layers.
std::vector<int> checked_split(const ModelConfig& config, int chunks, std::vector<int> split);

// Parses "7,9,9,7"; returns an empty split for "auto". UserError for anything else.
std::vector<int> parse_split(const std::string& text);

// The layers of each chunk of one pipeline rank.
std::vector<StageLayers> stage_layers(const std::vector<int>& split, int stages, int rank);

// How a run is distributed over its ranks. The configuration reads a Layout, the planner searches
// for one, and the engine is built from one.
struct Layout {
  int tp = 1, cp = 1, pp = 1;
  ContextMethod context = ContextMethod::Ring;  // how the cp ranks attend
  int dp = 1;                                   // 0: all remaining ranks; fit_layout fills it in
  int chunks = 1;
  PipelineKind schedule = PipelineKind::OneForwardOneBackward;
  std::vector<int> split = {};   // layers of each pipeline chunk; empty: balanced
  std::int64_t micro_batch = 1;  // sequences per forward on one rank
  int zero = 0;
  int shard_group = 0;  // data ranks that hold one sharded copy; 0: all
  int ep = 0;           // ranks that hold the experts of a layer: tp × some data ranks; 0: tp
  Dispatch dispatch = Dispatch::AllGather;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::None;
  int recompute_every = 1;  // recompute layers 0, n, 2n, …

  int ranks() const { return tp * cp * pp * dp; }
  // Of equal length, into which a sequence is split.
  std::int64_t context_chunks() const {
    return std::int64_t{context == ContextMethod::Ring ? 2 : 1} * cp;
  }
  int expert_ranks() const { return ep == 0 ? 1 : ep / tp; }  // data ranks with different experts
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout);     // "tp4 pp16 dp2 micro1 zero1 …"
std::string to_flow_yaml(const Layout& layout);  // the section `layout`: "{tp: 4, cp: 1, …}"

// The sizes of the training job that a layout must divide. The model must outlive it.
struct Workload {
  const ModelConfig& model;
  std::int64_t batch = 1;   // sequences per step
  std::int64_t length = 1;  // tokens per sequence
  // With a ramp: steps have ramp_start, ramp_start + ramp_increment, … and at last `batch`
  // sequences.
  std::int64_t ramp_start = 0, ramp_increment = 0;  // 0: no ramp
};

// Whether experts on data ranks and the shard groups of ZeRO are inside each other.
bool fits_shards(const Layout& layout);
// Returns the layout with dp filled in for `ranks`. Throws UserError if a size does not divide; the
// message names the nearest values that do.
Layout fit_layout(Layout layout, const Workload& work, int ranks);

// Whether each of cp context ranks can have some of the heads of a tensor rank, for a tp that
// check_tensor_ranks accepts.
bool fits_ulysses(const ModelConfig& model, std::int64_t tp, std::int64_t cp);

// UserError if tp ranks cannot share a model: tp must divide its heads and MLP columns, and fit its
// key-value heads and vocabulary. `name` is what the message calls tp.
void check_tensor_ranks(const ModelConfig& model, std::int64_t tp, const std::string& name);

// These take a layout that fit_layout has accepted.
// The shard of the model that a rank with these chunks holds.
ModelShard model_shard(const std::vector<StageLayers>& ranges, const Layout& layout,
                       const Coordinates& coordinates);
Grid grid_of(const Layout& layout, const ModelConfig& model);
std::int64_t micro_batches_per_step(const Layout& layout, std::int64_t batch);

// Chooses tp, pp and zero for `ranks` in nodes of `node` ranks: the smallest tp × pp for which the
// memory of a rank suffices. Prefers tp to pp; tp stays inside a node; the other ranks are data
// ranks. `fits` tells whether a layout, with dp filled in, fits the memory. The other fields are
// unchanged. UserError if no layout fits.
Layout choose_layout(const Layout& layout, const Workload& work, int ranks, int node,
                     const std::function<bool(const Layout&)>& fits);

}  // namespace kintsugi
