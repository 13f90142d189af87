#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/stage.h"
#include "optim/offloaded_update.h"
#include "plan/costs/micro_batch_trace.h"

namespace kintsugi {

// Memory of weights, gradients and optimizer of one rank, and the work at the end of a step.
struct StateTrace {
  RegionBytes memory = {}, host = {};  // of the device, and offloaded
  // Moved by norm, clipping and update, by operation.
  std::map<std::string, double> step_bytes = {};
  double step_kernels = 0;
  std::vector<TracedOperation> step_matmuls = {};  // of an update of whole matrices
  // Calls and bytes of the collectives after the last micro-batch, by group and kind.
  struct Traffic {
    double calls = 0, bytes = 0;
  };
  std::map<std::pair<std::string, Collective>, Traffic> traffic = {};
  double parameters = 0;  // of this rank, before sharding
  // Bytes of one layer's buckets, in the run's precision and in the reduce-scatter.
  struct LayerBytes {
    double weights = 0, gradients = 0;
  };
  std::map<GroupKind, LayerBytes> layer = {};  // by shard group
};

// What a collective after the last micro-batch is for.
enum class TrafficUse { ScatteredGradients, ReducedGradients, Weights, Matrices, Sums };
TrafficUse use_of(GroupKind group, Collective collective);

// What the state of a rank depends on: how many layers of each kind it has, embedding and head.
struct StageContents {
  std::vector<int> layers = {};  // by kind (ModelLayers)
  bool embedding = true, head = true;
  auto operator<=>(const StageContents&) const = default;
};
StageContents stage_contents(const ModelLayers& model, const std::vector<StageLayers>& chunks);

// That of many layers is extrapolated from those of few, which `known` returns if it is given.
using StateOf = std::function<StateTrace(const StageContents&)>;
StateTrace trace_state(const PlanJob& job, const ModelLayers& model, const Layout& layout,
                       const StageContents& stage, const Coordinates& coordinates = {},
                       const StateOf& known = {}, const StateOffload& offload = {});

}  // namespace kintsugi
