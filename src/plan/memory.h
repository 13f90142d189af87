#pragma once

#include <vector>

#include "parallel/pipeline.h"
#include "plan/pass_trace.h"
#include "plan/state_trace.h"

namespace kintsugi {

// How many micro-batches each rank of a pipeline holds: slots_of, of a schedule short enough to
// build at once. From some number of micro-batches on, more of them change nothing.
std::vector<std::vector<ChunkSlots>> pipeline_slots(const PipelineShape& shape);

// The engine's arena on one rank of a layout, byte for byte.
RegionBytes rank_memory(const PlanJob& job, const PlanLayout& layout, const PassTrace& pass,
                        const StateTrace& state, const std::vector<StagePart>& parts,
                        const std::vector<ChunkSlots>& slots);

}  // namespace kintsugi
