// The memory of micro-batches under way: every list of actions is acted out with as many places as
// slots_of says, and nobody may sit down on an occupied one.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "parallel/pipeline.h"

namespace kintsugi {
namespace {

// Places that micro-batches take in turns.
class Seats {
 public:
  explicit Seats(int count) : count_(count) {}
  void take(int micro_batch) {
    ASSERT_GT(count_, 0);
    if (sitting_.contains(micro_batch)) return;
    for (const auto& [other, seat] : sitting_)
      ASSERT_NE(seat, micro_batch % count_) << micro_batch << " sits down on " << other;
    ASSERT_NE(micro_batch % count_, leaving_) << "the last one is still on its way out";
    leaving_ = -1;
    sitting_[micro_batch] = micro_batch % count_;
    most_ = std::max(most_, static_cast<int>(sitting_.size()));
  }
  void expect(int micro_batch) const { ASSERT_TRUE(sitting_.contains(micro_batch)); }
  void leave(int micro_batch) { ASSERT_EQ(sitting_.erase(micro_batch), 1u); }
  // Sent away: its place is free once the message has gone.
  void send(int micro_batch) {
    leave(micro_batch);
    leaving_ = micro_batch % count_;
  }
  bool empty() const { return sitting_.empty(); }
  int most() const { return most_; }

 private:
  int count_, most_ = 0, leaving_ = -1;
  std::map<int, int> sitting_;
};

struct ChunkSeats {
  Seats inputs, stashes, weights, gradients;
};

struct Peaks {
  int inputs, stashes, weights, gradients;
};

// Acts out a rank's list; what was needed at most, chunk by chunk.
std::vector<Peaks> act(const PipelineSchedule& schedule, int rank,
                       const std::vector<ChunkSlots>& slots) {
  std::vector<ChunkSeats> chunks;
  for (const ChunkSlots& s : slots)
    chunks.push_back({Seats(s.stage.inputs), Seats(s.stage.stashes), Seats(s.stage.weights),
                      Seats(s.gradients)});
  const int parts = schedule.shape.stages * schedule.shape.chunks;
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    ChunkSeats& chunk = chunks[static_cast<std::size_t>(action.chunk)];
    const int part = action.chunk * schedule.shape.stages + rank, m = action.micro_batch;
    const auto gradient_done = [&] {
      chunk.gradients.expect(m);
      if (part == 0) chunk.gradients.leave(m);  // nobody is before it
    };
    switch (action.kind) {
      case ActionKind::ReceiveActivation:
        chunk.inputs.take(m);
        break;
      case ActionKind::Forward:
        if (part == 0) chunk.inputs.take(m);
        chunk.inputs.expect(m);
        chunk.stashes.take(m);
        if (part == parts - 1) chunk.gradients.take(m);  // the head makes it
        break;
      case ActionKind::ReceiveGradient:
        chunk.gradients.take(m);
        break;
      case ActionKind::Backward:
        gradient_done();
        chunk.stashes.leave(m);
        chunk.inputs.leave(m);
        break;
      case ActionKind::BackwardInput:
        gradient_done();
        chunk.stashes.expect(m);
        chunk.weights.take(m);
        break;
      case ActionKind::BackwardWeight:
        chunk.weights.leave(m);
        chunk.stashes.leave(m);
        chunk.inputs.leave(m);
        break;
      case ActionKind::SendGradient:
        chunk.gradients.send(m);
        break;
      default:
        break;
    }
    if (testing::Test::HasFatalFailure()) return {};
  }
  std::vector<Peaks> peaks;
  for (const ChunkSeats& chunk : chunks) {
    EXPECT_TRUE(chunk.inputs.empty() && chunk.stashes.empty() && chunk.weights.empty() &&
                chunk.gradients.empty())
        << "all leave in the end";
    peaks.push_back(
        {chunk.inputs.most(), chunk.stashes.most(), chunk.weights.most(), chunk.gradients.most()});
  }
  return peaks;
}

using Check = std::function<void(const PipelineShape&, int rank, const std::vector<ChunkSlots>&,
                                 const std::vector<Peaks>&)>;

void for_each_shape(PipelineKind kind, const Check& check) {
  const bool interleaved = kind == PipelineKind::Interleaved;
  // A single stage has nobody to interleave with.
  for (int stages = interleaved ? 2 : 1; stages <= 6; ++stages)
    for (int micro_batches = 1; micro_batches <= 12; ++micro_batches)
      for (int chunks = interleaved ? 2 : 1; chunks <= (interleaved ? 3 : 1); ++chunks) {
        if (interleaved && micro_batches % stages != 0) continue;
        const PipelineSchedule schedule =
            make_pipeline_schedule({kind, stages, micro_batches, chunks});
        for (int rank = 0; rank < stages; ++rank) {
          SCOPED_TRACE(testing::Message()
                       << to_string(kind) << ": rank " << rank << " of " << stages << ", "
                       << micro_batches << " micro-batches, " << chunks << " chunks");
          const std::vector<ChunkSlots> slots = slots_of(schedule, rank);
          ASSERT_EQ(static_cast<int>(slots.size()), chunks);
          const std::vector<Peaks> peaks = act(schedule, rank, slots);
          if (testing::Test::HasFatalFailure()) return;
          for (std::size_t c = 0; c < slots.size(); ++c) {
            // No more places than micro-batches, and one for a gradient that is being sent.
            EXPECT_LE(slots[c].stage.inputs, micro_batches);
            EXPECT_LE(slots[c].stage.stashes, micro_batches);
            EXPECT_LE(slots[c].gradients, micro_batches + 1);
            EXPECT_GE(slots[c].stage.inputs, slots[c].stage.stashes);
          }
          check(schedule.shape, rank, slots, peaks);
        }
      }
}

TEST(PipelineSlots, GPipeKeepsEveryMicroBatch) {
  for_each_shape(PipelineKind::GPipe, [](const PipelineShape& shape, int,
                                         const std::vector<ChunkSlots>& slots, const auto&) {
    EXPECT_EQ(slots[0].stage.inputs, shape.micro_batches);
    EXPECT_EQ(slots[0].stage.stashes, shape.micro_batches);
    EXPECT_EQ(slots[0].stage.weights, 0);
  });
}

TEST(PipelineSlots, OneForwardOneBackwardKeepsAsManyAsStagesBehindIt) {
  for_each_shape(
      PipelineKind::OneForwardOneBackward,
      [](const PipelineShape& shape, int rank, const std::vector<ChunkSlots>& slots, const auto&) {
        EXPECT_EQ(slots[0].stage.stashes, std::min(shape.micro_batches, shape.stages - rank));
        EXPECT_LE(slots[0].stage.inputs, std::min(shape.micro_batches, shape.stages - rank + 1));
        EXPECT_LE(slots[0].gradients, 3);
        EXPECT_EQ(slots[0].stage.weights, 0);
      });
}

TEST(PipelineSlots, InterleavedChunksHaveTheirOwn) {
  for_each_shape(PipelineKind::Interleaved,
                 [](const PipelineShape& shape, int, const std::vector<ChunkSlots>& slots,
                    const std::vector<Peaks>& peaks) {
                   for (int c = 0; c < shape.chunks; ++c) {
                     const auto at = static_cast<std::size_t>(c);
                     EXPECT_EQ(slots[at].stage.weights, 0);
                     // First in, first out: the most at a time are all that are needed.
                     EXPECT_EQ(slots[at].stage.stashes, peaks[at].stashes);
                   }
                 });
}

TEST(PipelineSlots, HalvedBackwardsKeepWhatTheirSecondHalfNeeds) {
  for_each_shape(PipelineKind::ZeroBubbleH1,
                 [](const PipelineShape& shape, int, const std::vector<ChunkSlots>& slots,
                    const std::vector<Peaks>& peaks) {
                   EXPECT_GE(slots[0].stage.weights, 1);
                   EXPECT_EQ(slots[0].stage.weights, peaks[0].weights);
                   EXPECT_EQ(slots[0].stage.stashes, peaks[0].stashes);
                   EXPECT_LE(slots[0].stage.stashes, shape.micro_batches);
                 });
}

}  // namespace
}  // namespace kintsugi
