// The buffers of a pipeline: never used by two micro-batches at a time, and no more than the
// literature counts.
#include <gtest/gtest.h>

#include <map>

#include "parallel/pipeline.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

using Owner = std::pair<int, int>;  // chunk, micro-batch

// Replays a rank's actions: every buffer has one owner from its first use to its last.
void expect_no_clash(const PipelineSchedule& schedule, int rank, const RankSlots& slots) {
  std::map<int, Owner> inputs, stashes, gradients, weights;
  const auto take = [&](std::map<int, Owner>& held, const std::vector<int>& of, int count,
                        const Owner& owner) {
    const int buffer = of.at(static_cast<std::size_t>(owner.second));
    ASSERT_LT(buffer, count);
    const auto [entry, is_new] = held.emplace(buffer, owner);
    ASSERT_TRUE(is_new || entry->second == owner)
        << "buffer " << buffer << " of rank " << rank << " has two owners at a time";
  };
  const auto release = [](std::map<int, Owner>& held, const Owner& owner) {
    std::erase_if(held, [&](const auto& entry) { return entry.second == owner; });
  };
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    const Owner owner{action.chunk, action.micro_batch};
    const StageSlots& chunk = slots.chunks[static_cast<std::size_t>(action.chunk)];
    const auto& gradient_of = slots.gradient_of[static_cast<std::size_t>(action.chunk)];
    const bool sends = previous_chunk(schedule.shape, {rank, action.chunk}).has_value();
    const bool forward = action.kind == ActionKind::Forward;
    const bool backward =
        action.kind == ActionKind::Backward || action.kind == ActionKind::BackwardInput;
    if (forward || action.kind == ActionKind::ReceiveActivation)
      take(inputs, chunk.inputs, slots.inputs, owner);
    if (forward) take(stashes, chunk.stashes, static_cast<int>(slots.stashes.size()), owner);
    if (backward || action.kind == ActionKind::ReceiveGradient)
      take(gradients, gradient_of, slots.gradients, owner);
    if (action.kind == ActionKind::BackwardInput)
      take(weights, chunk.weights, schedule.shape.stages, owner);
    if (action.kind == ActionKind::Backward || action.kind == ActionKind::BackwardWeight)
      for (auto* held : {&inputs, &stashes, &weights}) release(*held, owner);
    if (action.kind == ActionKind::SendGradient || (backward && !sends)) release(gradients, owner);
  }
  EXPECT_TRUE(inputs.empty() && stashes.empty() && weights.empty() && gradients.empty());
}

// Micro-batches between forward and backward, as the papers count them.
int in_flight(const PipelineShape& shape, int rank) {
  const int m = shape.micro_batches, p = shape.stages, v = shape.chunks;
  switch (shape.kind) {
    case PipelineKind::GPipe:
      return m;
    case PipelineKind::OneForwardOneBackward:
      return std::min(m, p - rank);
    case PipelineKind::ZeroBubbleH1:
      return std::min(m, p);
    case PipelineKind::Interleaved:
      return std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
  }
  return 0;
}

TEST(PipelineMemory, HasOneOwnerAtATimeAndIsAsLittleAsThePapersSay) {
  for (const PipelineKind kind : {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                                  PipelineKind::ZeroBubbleH1, PipelineKind::Interleaved})
    for (const int stages : {2, 3, 4, 8})
      for (const int micro_batches : {1, 2, 4, 7, 8, 24})
        for (const int chunks : {1, 2, 3, 5}) {
          if ((kind == PipelineKind::Interleaved) != (chunks > 1)) continue;
          if (chunks > 1 && micro_batches % stages != 0) continue;
          const PipelineShape shape{kind, stages, micro_batches, chunks};
          const PipelineSchedule schedule = make_pipeline_schedule(shape);
          for (int rank = 0; rank < stages; ++rank) {
            SCOPED_TRACE(fmt::format("{}, rank {} of {}, {} micro-batches, {} chunks",
                                     to_string(kind), rank, stages, micro_batches, chunks));
            const std::vector<int> even(static_cast<std::size_t>(chunks), 2);
            const RankSlots slots = slots_of(schedule, rank, even, true);
            EXPECT_EQ(static_cast<int>(slots.stashes.size()), in_flight(shape, rank));
            EXPECT_LE(slots.inputs, in_flight(shape, rank) + 2);
            expect_no_clash(schedule, rank, slots);
            // Chunks that cannot share stashes, and chunks of different sizes.
            expect_no_clash(schedule, rank, slots_of(schedule, rank, even, false));
            std::vector<int> uneven = even;
            uneven.back() = 3;
            const RankSlots larger = slots_of(schedule, rank, uneven, true);
            expect_no_clash(schedule, rank, larger);
            for (std::size_t c = 0; c < uneven.size(); ++c)
              for (const int stash : larger.chunks[c].stashes)
                EXPECT_GE(uneven[static_cast<std::size_t>(
                              larger.stashes[static_cast<std::size_t>(stash)])],
                          uneven[c]);
          }
        }
}

int most(const std::vector<int>& slots) {
  return slots.empty() ? -1 : *std::max_element(slots.begin(), slots.end());
}

// A step with fewer micro-batches uses the buffers of the largest one.
TEST(PipelineMemory, SmallerStepsFitTheBuffersOfTheLargest) {
  for (const PipelineKind kind : {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                                  PipelineKind::ZeroBubbleH1, PipelineKind::Interleaved})
    for (const int stages : {2, 3, 4, 5, 8})
      for (const int chunks : {1, 2, 3, 5}) {
        if ((kind == PipelineKind::Interleaved) != (chunks > 1)) continue;
        const int unit = chunks > 1 ? stages : 1, largest = chunks > 1 ? 4 * stages : 3 * stages;
        for (int planned_for = unit; planned_for <= largest; planned_for += unit) {
          const auto plan = make_pipeline_schedule({kind, stages, planned_for, chunks});
          for (int micro_batches = unit; micro_batches < planned_for; micro_batches += unit) {
            const auto schedule = make_pipeline_schedule({kind, stages, micro_batches, chunks});
            for (int rank = 0; rank < stages; ++rank)
              for (const bool alike : {true, false}) {
                SCOPED_TRACE(fmt::format("{}, rank {} of {}, {} of {} micro-batches, {} chunks",
                                         to_string(kind), rank, stages, micro_batches, planned_for,
                                         chunks));
                std::vector<int> layers(static_cast<std::size_t>(chunks), 2);
                layers.back() = 3;
                const RankSlots planned = slots_of(plan, rank, layers, alike);
                const RankSlots slots = slots_within(planned, schedule, rank);
                expect_no_clash(schedule, rank, slots);
                ASSERT_LE(slots.inputs, planned.inputs);
                ASSERT_LE(slots.gradients, planned.gradients);
                ASSERT_EQ(slots.stashes, planned.stashes);
                for (std::size_t c = 0; c < slots.chunks.size(); ++c) {
                  const StageSlots &own = slots.chunks[c], &all = planned.chunks[c];
                  ASSERT_LE(most(own.embeddings), most(all.embeddings));
                  ASSERT_LE(most(own.weights), most(all.weights));
                  for (const int stash : own.stashes)  // with memory for the chunk's layers
                    ASSERT_GE(layers[static_cast<std::size_t>(
                                  planned.stashes.at(static_cast<std::size_t>(stash)))],
                              layers[c]);
                }
              }
          }
        }
      }
}

// Uneven chunks, and chunks whose layers save different tensors.
TEST(PipelineMemory, SharingChangesNoResult) {
  for (const std::vector<int>& split : {std::vector{1, 1, 1, 3}, {2, 1, 1, 2}, {1, 2, 2, 1}})
    for (const int every : {1, 2})
      for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
        const Training training{.model = tiny_model("bloom", 6),
                                .sequences = 4,
                                .recompute = recompute,
                                .recompute_every = every};
        const RankLayout layout{
            .pp = 2, .chunks = 2, .schedule = PipelineKind::Interleaved, .split = split};
        expect_same(trained(layout, training, 3), trained({}, training, 3),
                    fmt::format("{}, recompute {} every {}", to_string(layout),
                                to_string(recompute), every));
      }
}

}  // namespace
}  // namespace kintsugi
