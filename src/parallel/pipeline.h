#pragma once

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "model/stage.h"
#include "parallel/schedule.h"

namespace kintsugi {

// How one rank's memory for micro-batches follows from its list of actions. Its chunks share it.
struct RankSlots {
  int inputs = 1;
  int gradients = 1;  // of the residual stream, received or made by the head, until they are sent
  std::vector<int> stashes;                   // the chunk whose layers each of them has
  std::vector<StageSlots> chunks;             // where each chunk's micro-batches are
  std::vector<std::vector<int>> gradient_of;  // the same of gradients
};
// `layers` of each chunk. Chunks that are `alike` can use each other's stashes.
RankSlots slots_of(const PipelineSchedule& schedule, int rank, const std::vector<int>& layers,
                   bool alike);
// Whether the n-th layers of all parts of a rank keep the same.
bool keep_alike(const StageOptions& options, const std::vector<StagePart>& parts);

// Which of two buffers holds the output of which forward pass: they are written in turns, and a
// schedule may compute something else before it sends.
class OutputTurns {
 public:
  std::size_t write(int chunk, int micro_batch);         // the buffer to write to
  std::size_t holder(int chunk, int micro_batch) const;  // Failure if it was written over

 private:
  std::array<std::pair<int, int>, 2> held_ = {{{-1, -1}, {-1, -1}}};
  std::size_t last_ = 0;
};

// Runs a schedule: one rank's stages, the messages to its neighbours, and the memory of what is
// under way.
class Pipeline {
 public:
  // `micro_batches` of every step; on a single stage any number will do.
  Pipeline(Backend& backend, Arena& arena, StageScratch& scratch,
           const std::vector<StagePart>& parts, const PipelineShape& shape, Communicator& group,
           BucketHooks* hooks);

  // Brings a micro-batch to the device when its turn comes.
  using Load = std::function<MicroBatch(int number)>;
  struct Step {
    int micro_batches = 1;
    double gradient_scale = 1.0;
    Tensor loss_sum = {};  // (1): on the last stage, the losses are added to it
  };
  // Gradients of gradient_scale * the sum of all losses.
  void run(const Step& step, const Load& load);
  // Losses only, one micro-batch after the other.
  void evaluate(const Step& step, const Load& load);

  bool is_last() const { return group_->rank() == group_->size() - 1; }

 private:
  // A buffer that may be on its way to another rank.
  struct Outgoing {
    Tensor buffer;  // (rows, hidden)
    Communicator::Work sending = {};
  };
  struct Chunk {
    Stage stage;
    std::vector<int> gradient_of = {};                         // by micro-batch
    std::vector<Communicator::Work> inputs_on_their_way = {};  // by micro-batch
    std::vector<Communicator::Work> gradients_on_their_way = {};
  };
  const PipelineSchedule& schedule_for(int micro_batches);
  void run_alone(const Step& step, const Load& load);
  void act(const Action& action, const Step& step, const Load& load);
  void forward(int chunk, int number, const Step& step);
  void send(Outgoing& from, const MicroBatch& batch, int to);
  void reclaim(Outgoing& buffer) { group_->wait(std::exchange(buffer.sending, {})); }
  Outgoing& gradient(Chunk& chunk, int number) {
    return gradients_[static_cast<std::size_t>(
        chunk.gradient_of[static_cast<std::size_t>(number)])];
  }
  Tensor rows(const Tensor& buffer, const MicroBatch& batch) const {
    return buffer.rows(0, scratch_->size(batch).rows());
  }
  const MicroBatch& batch(int number) const { return batches_[static_cast<std::size_t>(number)]; }

  Backend* backend_;
  StageScratch* scratch_;
  Communicator* group_;
  PipelineSchedule schedule_;
  std::vector<Chunk> chunks_;
  std::vector<Outgoing> gradients_;
  std::array<Outgoing, 2> outputs_;  // what stages without a head write
  OutputTurns turns_;
  std::vector<MicroBatch> batches_;  // of the step, as far as they were loaded
};

}  // namespace kintsugi
