#pragma once

#include <vector>

#include "parallel/pipeline.h"
#include "plan/costs/pass_trace.h"
#include "plan/costs/state_trace.h"

namespace kintsugi {

// How many micro-batches a rank of a pipeline holds at a time.
struct HeldPasses {
  int inputs = 1, gradients = 1;
  std::vector<int> stashes = {}, weights = {};  // of each chunk
  int shared_stashes = 1;                       // of all of them, where they take turns
  bool operator==(const HeldPasses&) const = default;
};
HeldPasses held_passes(const PipelineSchedule& schedule, int rank);
// Of each rank, from a schedule short enough to build at once: from some number of micro-batches
// on, more of them change nothing.
std::vector<HeldPasses> pipeline_passes(const PipelineShape& shape);

// The engine's arena on one rank of a layout, byte for byte.
RegionBytes rank_memory(const PlanJob& job, const Layout& layout, const PassTrace& pass,
                        const StateTrace& state, const std::vector<StagePart>& parts,
                        const HeldPasses& held);

}  // namespace kintsugi
