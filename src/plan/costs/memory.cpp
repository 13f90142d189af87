#include "plan/costs/memory.h"

#include <algorithm>

namespace kintsugi {
namespace {

std::int64_t& at(RegionBytes& bytes, Region region) {
  return bytes[static_cast<std::size_t>(region)];
}

// Layers [first, last) that are multiples of n.
int multiples(int first, int last, int n) { return (last + n - 1) / n - (first + n - 1) / n; }

int layers_of(const StagePart& part) { return part.last_layer - part.first_layer; }

// Of one micro-batch in a stage's blocks, without what comes in.
RegionBytes stash_memory(const Layout& layout, const PassTrace& pass, const StagePart& part) {
  const int layers = layers_of(part);
  const int recomputed = multiples(part.first_layer, part.last_layer, layout.recompute_every);
  RegionBytes bytes = recomputed * pass.recomputed.stash + (layers - recomputed) * pass.plain.stash;
  at(bytes, Region::Activations) += (layers - 1) * pass.boundary;
  return bytes;
}

// As Pipeline's constructor shares them.
RegionBytes stashes_memory(const Layout& layout, const PassTrace& pass,
                           const std::vector<StagePart>& parts, const HeldPasses& held) {
  int own = 0;
  RegionBytes bytes = {};
  for (std::size_t c = 0; c < parts.size(); ++c) {
    own += held.stashes[c] * layers_of(parts[c]);
    bytes = bytes + held.stashes[c] * stash_memory(layout, pass, parts[c]);
  }
  const auto largest = std::max_element(
      parts.begin(), parts.end(),
      [](const StagePart& a, const StagePart& b) { return layers_of(a) < layers_of(b); });
  const bool alike =
      keep_alike({.recompute = layout.recompute, .recompute_every = layout.recompute_every}, parts);
  if (alike && held.shared_stashes * layers_of(*largest) < own)
    return held.shared_stashes * stash_memory(layout, pass, *largest);
  return bytes;
}

int count_of(const std::vector<int>& slots) {
  return slots.empty() ? 0 : 1 + *std::max_element(slots.begin(), slots.end());
}

}  // namespace

HeldPasses held_passes(const PipelineSchedule& schedule, int rank) {
  const std::vector<int> layers(static_cast<std::size_t>(schedule.shape.chunks), 1);
  const RankSlots own = slots_of(schedule, rank, layers, false);
  HeldPasses held{.inputs = own.inputs, .gradients = own.gradients};
  for (const StageSlots& chunk : own.chunks) {
    held.stashes.push_back(count_of(chunk.embeddings));
    held.weights.push_back(count_of(chunk.weights));
  }
  held.shared_stashes = static_cast<int>(slots_of(schedule, rank, layers, true).stashes.size());
  return held;
}

std::vector<HeldPasses> pipeline_passes(const PipelineShape& shape) {
  PipelineShape small = shape;
  const bool all = shape.kind == PipelineKind::GPipe;  // holds every micro-batch
  const int enough = 3 * shape.stages;
  if (!all && shape.micro_batches > enough)
    small.micro_batches = enough + shape.micro_batches % shape.stages;
  constexpr int kFew = 4;  // what is held for so many at once is held for all of them
  const int more = all ? std::max(0, shape.micro_batches - kFew) : 0;
  small.micro_batches -= more;
  std::vector<HeldPasses> ranks;
  const PipelineSchedule schedule = make_pipeline_schedule(small);
  for (int rank = 0; rank < shape.stages; ++rank) {
    HeldPasses& held = ranks.emplace_back(held_passes(schedule, rank));
    const int spare = rank > 0 ? 1 : 0;  // a gradient that is being sent
    for (int* count : {&held.inputs, &held.stashes.front(), &held.shared_stashes})
      if (*count == kFew) *count += more;
    if (held.gradients - spare == kFew) held.gradients += more;
  }
  return ranks;
}

RegionBytes rank_memory(const PlanJob& job, const Layout& layout, const PassTrace& pass,
                        const StateTrace& state, const std::vector<StagePart>& parts,
                        const HeldPasses& held) {
  RegionBytes bytes = state.memory + pass.scratch + stashes_memory(layout, pass, parts, held);
  for (std::size_t c = 0; c < parts.size(); ++c) {
    bytes = bytes + (std::int64_t{held.weights[c]} * layers_of(parts[c])) * pass.kept;
    if (parts[c].embedding) bytes = bytes + held.stashes[c] * pass.embedding_stash;
    if (parts[c].head) bytes = bytes + pass.head_memory;
  }
  at(bytes, Region::Activations) += held.inputs * pass.boundary;
  at(bytes, Region::Workspace) += held.gradients * pass.boundary;
  const bool one_output = parts.size() == 1 && parts[0].head;
  at(bytes, Region::Activations) += (one_output ? 1 : 2) * pass.boundary;
  // The batch as Engine keeps it: ids, targets, positions, first visible keys.
  const std::int64_t numbers = pass.tokens * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t batches = layout.pp == 1 ? 1 : micro_batches_per_step(layout, job.batch);
  std::int64_t& workspace = at(bytes, Region::Workspace);
  workspace += batches * 2 * numbers + (job.documents ? batches : 1) * numbers;
  if (job.documents) workspace += batches * layout.cp * numbers;
  if (layout.cp > 1) workspace += numbers;
  workspace += static_cast<std::int64_t>(size_of(accumulator_of(job.precision)));
  return bytes;
}

}  // namespace kintsugi
