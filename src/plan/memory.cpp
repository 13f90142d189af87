#include "plan/memory.h"

#include <algorithm>

namespace kintsugi {
namespace {

std::int64_t& at(RegionBytes& bytes, Region region) {
  return bytes[static_cast<std::size_t>(region)];
}

// Layers [first, last) that are multiples of n.
int multiples(int first, int last, int n) { return (last + n - 1) / n - (first + n - 1) / n; }

// As Stage's constructor takes it.
RegionBytes stage_memory(const PlanLayout& layout, const PassTrace& pass, const StagePart& part,
                         const StageSlots& slots) {
  const int layers = part.last_layer - part.first_layer;
  const int recomputed = multiples(part.first_layer, part.last_layer, layout.recompute_every);
  RegionBytes stashes =
      recomputed * pass.recomputed.stash + (layers - recomputed) * pass.plain.stash;
  at(stashes, Region::Activations) += (layers - 1) * pass.boundary;
  if (part.embedding) stashes = stashes + pass.embedding_stash;
  RegionBytes bytes = slots.stashes * stashes;
  at(bytes, Region::Activations) += slots.inputs * pass.boundary;
  bytes = bytes + (static_cast<std::int64_t>(slots.weights) * layers) * pass.kept;
  return part.head ? bytes + pass.head_memory : bytes;
}

}  // namespace

std::vector<std::vector<ChunkSlots>> pipeline_slots(const PipelineShape& shape) {
  PipelineShape small = shape;
  const bool all = shape.kind == PipelineKind::GPipe;  // holds every micro-batch
  const int enough = 3 * shape.stages;
  if (!all && shape.micro_batches > enough)
    small.micro_batches = enough + shape.micro_batches % shape.stages;
  constexpr int kFew = 4;  // what is held for so many at once is held for all of them
  const int more = all ? std::max(0, shape.micro_batches - kFew) : 0;
  small.micro_batches -= more;
  std::vector<std::vector<ChunkSlots>> slots;
  const PipelineSchedule schedule = make_pipeline_schedule(small);
  for (int rank = 0; rank < shape.stages; ++rank) {
    slots.push_back(slots_of(schedule, rank));
    const int spare = rank > 0 ? 1 : 0;  // a gradient that is being sent
    for (ChunkSlots& chunk : slots.back()) {
      if (chunk.stage.inputs == kFew) chunk.stage.inputs += more;
      if (chunk.stage.stashes == kFew) chunk.stage.stashes += more;
      if (chunk.gradients - spare == kFew) chunk.gradients += more;
    }
  }
  return slots;
}

RegionBytes rank_memory(const PlanJob& job, const PlanLayout& layout, const PassTrace& pass,
                        const StateTrace& state, const std::vector<StagePart>& parts,
                        const std::vector<ChunkSlots>& slots) {
  RegionBytes bytes = state.memory + pass.scratch;
  for (std::size_t c = 0; c < parts.size(); ++c) {
    bytes = bytes + stage_memory(layout, pass, parts[c], slots[c].stage);
    at(bytes, Region::Workspace) += slots[c].gradients * pass.boundary;
  }
  const bool one_output = parts.size() == 1 && parts[0].head;
  at(bytes, Region::Activations) += (one_output ? 1 : 2) * pass.boundary;
  // The batch as Engine keeps it: ids, targets, positions, first visible keys.
  const std::int64_t numbers = pass.tokens * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t batches = layout.pp == 1 ? 1 : micro_batches_of(job, layout);
  std::int64_t& workspace = at(bytes, Region::Workspace);
  workspace += batches * 2 * numbers + (job.documents ? batches : 1) * numbers;
  if (job.documents) workspace += batches * layout.cp * numbers;
  if (layout.cp > 1) workspace += numbers;
  workspace += static_cast<std::int64_t>(size_of(accumulator_of(job.precision)));
  return bytes;
}

}  // namespace kintsugi
