#pragma once

#include <vector>

#include "parallel/pipeline.h"
#include "plan/costs/micro_batch_trace.h"
#include "plan/costs/state_trace.h"

namespace kintsugi {

// How many micro-batches a pipeline rank holds at a time.
struct HeldMicroBatches {
  int inputs = 1, gradients = 1;
  std::vector<int> stashes = {}, weights = {};  // per chunk
  int shared_stashes = 1;                       // if all chunks share their stashes
  bool operator==(const HeldMicroBatches&) const = default;
};
HeldMicroBatches held_micro_batches(const PipelineSchedule& schedule, int rank);
// The same for each rank. Computed from a short schedule: above some number of micro-batches the
// result does not change any more.
std::vector<HeldMicroBatches> pipeline_micro_batches(const PipelineShape& shape);

// The size of the engine's arena on one rank of a layout, exact to the byte. `chunks` are the
// layers of the rank's pipeline chunks.
RegionBytes rank_memory(const PlanJob& job, const ModelLayers& model, const Layout& layout,
                        const MicroBatchTrace& trace, const StateTrace& state,
                        const std::vector<StageLayers>& chunks, const HeldMicroBatches& held);

}  // namespace kintsugi
