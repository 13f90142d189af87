#include "plan/costs/memory.h"

#include <algorithm>

#include "model/objective_scalars.h"

namespace kintsugi {
namespace {

std::int64_t& at(RegionBytes& bytes, Region region) {
  return bytes[static_cast<std::size_t>(region)];
}

int layers_of(const StageLayers& chunk) { return chunk.last_layer - chunk.first_layer; }

// The stash of one micro-batch in the blocks of a chunk, without the chunk's input.
RegionBytes stash_memory(const Layout& layout, const ModelLayers& model,
                         const MicroBatchTrace& trace, const StageLayers& chunk) {
  RegionBytes bytes = {};
  for (int layer = chunk.first_layer; layer < chunk.last_layer; ++layer) {
    const LayerTraces& of = trace.layers[model.kind(layer)];
    bytes = bytes + (layer % layout.recompute_every == 0 ? of.recomputed : of.plain).stash;
  }
  at(bytes, Region::Activations) += (layers_of(chunk) - 1) * trace.boundary;
  return bytes;
}

// The stashes of all chunks. They are shared by the same rule as in Pipeline's constructor.
RegionBytes stashes_memory(const ModelLayers& model, const Layout& layout,
                           const MicroBatchTrace& trace, const std::vector<StageLayers>& chunks,
                           const HeldMicroBatches& held) {
  int own = 0;
  RegionBytes bytes = {};
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    own += held.stashes[c] * layers_of(chunks[c]);
    bytes = bytes + held.stashes[c] * stash_memory(layout, model, trace, chunks[c]);
  }
  const auto largest = std::max_element(
      chunks.begin(), chunks.end(),
      [](const StageLayers& a, const StageLayers& b) { return layers_of(a) < layers_of(b); });
  const bool alike = save_same_tensors(
      model, {.recompute = layout.recompute, .recompute_every = layout.recompute_every}, chunks);
  if (alike && held.shared_stashes * layers_of(*largest) < own)
    return held.shared_stashes * stash_memory(layout, model, trace, *largest);
  return bytes;
}

int count_of(const std::vector<int>& slots) {
  return slots.empty() ? 0 : 1 + *std::max_element(slots.begin(), slots.end());
}

}  // namespace

HeldMicroBatches held_micro_batches(const PipelineSchedule& schedule, int rank) {
  const std::vector<int> layers(static_cast<std::size_t>(schedule.shape.chunks), 1);
  const RankSlots own = slots_of(schedule, rank, layers, false);
  HeldMicroBatches held{.inputs = own.inputs, .gradients = own.gradients};
  for (const StageSlots& chunk : own.chunks) {
    held.stashes.push_back(count_of(chunk.embeddings));
    held.weights.push_back(count_of(chunk.weights));
  }
  held.shared_stashes = static_cast<int>(slots_of(schedule, rank, layers, true).stashes.size());
  return held;
}

std::vector<HeldMicroBatches> pipeline_micro_batches(const PipelineShape& shape) {
  PipelineShape small = shape;
  const bool all = shape.kind == PipelineKind::GPipe;  // holds every micro-batch
  // What interleaved stages hold may repeat only every three rounds, as they use buffers in turn.
  const int enough = 3 * shape.stages, period = shape.chunks > 1 ? enough : shape.stages;
  if (!all && shape.micro_batches > enough)
    small.micro_batches = enough + (shape.micro_batches - enough) % period;
  constexpr int kFew = 4;  // GPipe: what is held for this many micro-batches is held for all
  const int more = all ? std::max(0, shape.micro_batches - kFew) : 0;
  small.micro_batches -= more;
  std::vector<HeldMicroBatches> ranks;
  const PipelineSchedule schedule = make_pipeline_schedule(small);
  for (int rank = 0; rank < shape.stages; ++rank) {
    HeldMicroBatches& held = ranks.emplace_back(held_micro_batches(schedule, rank));
    const int spare = rank > 0 ? 1 : 0;  // the gradient that is being sent
    for (int* count : {&held.inputs, &held.stashes.front(), &held.shared_stashes})
      if (*count == kFew) *count += more;
    if (held.gradients - spare == kFew) held.gradients += more;
  }
  return ranks;
}

RegionBytes rank_memory(const PlanJob& job, const ModelLayers& model, const Layout& layout,
                        const MicroBatchTrace& trace, const StateTrace& state,
                        const std::vector<StageLayers>& chunks, const HeldMicroBatches& held) {
  RegionBytes bytes =
      state.memory + trace.scratch + stashes_memory(model, layout, trace, chunks, held);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    for (int layer = chunks[c].first_layer; layer < chunks[c].last_layer; ++layer)
      bytes = bytes + held.weights[c] * trace.layers[model.kind(layer)].recomputed.kept;
    if (chunks[c].embedding) bytes = bytes + held.stashes[c] * trace.embedding_stash;
    if (chunks[c].head) bytes = bytes + trace.head_memory;
  }
  at(bytes, Region::Activations) += held.inputs * trace.boundary;
  at(bytes, Region::Workspace) += held.gradients * trace.boundary;
  const bool one_output = chunks.size() == 1 && chunks[0].head;
  at(bytes, Region::Activations) += (one_output ? 1 : 2) * trace.boundary;
  // Engine's batch buffers: ids, targets, positions, first visible keys.
  const std::int64_t numbers = trace.tokens * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t batches = layout.pp == 1 ? 1 : micro_batches_per_step(layout, job.batch);
  std::int64_t& workspace = at(bytes, Region::Workspace);
  workspace += batches * 2 * numbers + (job.documents ? batches : 1) * numbers;
  if (job.documents) workspace += batches * layout.cp * numbers;
  if (layout.cp > 1) workspace += numbers;
  const auto wide = static_cast<std::int64_t>(size_of(accumulator_of(job.precision)));
  if (job.weights) workspace += batches * trace.tokens * wide;
  if (job.preference)
    workspace += batches * PreferenceLoss::most_sequences(trace.tokens, layout.cp) *
                 (2 * static_cast<std::int64_t>(sizeof(std::int32_t)) + wide);
  const auto of_losses =
      static_cast<std::int64_t>(objective_scalars(job.z_loss, job.preference.has_value()).sums());
  workspace += (of_losses + (job.skip_step ? 1 : 0)) * wide;
  if (const BalanceConfig& balance = job.model.balance; job.model.experts)
    workspace += (1 + (balance.bias_speed > 0 ? 1 : 0) + (balance.counts_last_step() ? 1 : 0)) *
                 job.model.layers * job.model.experts->count * wide;
  if (job.model.balance.capacity > 0) workspace += job.model.layers * wide;
  return bytes;
}

}  // namespace kintsugi
