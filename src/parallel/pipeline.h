#pragma once

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "model/stage.h"
#include "parallel/schedule.h"

namespace kintsugi {

// The buffers that one rank needs for its list of actions. Its chunks share them.
struct RankSlots {
  int inputs = 1;
  int gradients = 1;               // of the residual stream, from receive (or the head) to send
  std::vector<int> stashes;        // by stash: the chunk whose layers it has memory for
  bool shared = false;             // whether the chunks share stashes
  std::vector<StageSlots> chunks;  // which buffers each chunk's micro-batches use
  std::vector<std::vector<int>> gradient_of;  // the same for gradients
};
// `layers`: number of layers of each chunk. Chunks that are `alike` can share stashes.
RankSlots slots_of(const PipelineSchedule& schedule, int rank, const std::vector<int>& layers,
                   bool alike);
// For a schedule with fewer micro-batches than that of `planned`, whose buffers it uses.
RankSlots slots_within(const RankSlots& planned, const PipelineSchedule& schedule, int rank);
// Whether the n-th layers of all chunks of a rank save the same tensors.
bool save_same_tensors(const ModelLayers& model, const StageOptions& options,
                       const std::vector<StageLayers>& ranges);

// Tracks which of two buffers holds the output of which forward. Forwards write them in turn, and a
// schedule may run another forward before it sends an output.
class OutputBuffers {
 public:
  std::size_t write(int chunk, int micro_batch);       // returns the buffer to write to
  std::size_t find(int chunk, int micro_batch) const;  // Failure if it was overwritten

 private:
  std::array<std::pair<int, int>, 2> held_ = {{{-1, -1}, {-1, -1}}};
  std::size_t last_ = 0;
};

// Runs one rank's part of a schedule: its stages, the messages to its neighbours, and the memory of
// the micro-batches in flight.
class Pipeline {
 public:
  // shape.micro_batches is the largest number of a step; a single stage accepts any number.
  Pipeline(Backend& backend, Arena& arena, StageScratch& scratch,
           const std::vector<StageLayers>& ranges, const PipelineShape& shape, Communicator& group,
           BucketHooks* hooks);

  // Copies a micro-batch to the device; called when it is needed first.
  using Load = std::function<MicroBatch(int number)>;
  struct Step {
    int micro_batches = 1;
    Tensor loss_sum = {};  // the last stage adds the losses to it (Stage::loss)
  };
  // Computes the gradients of MicroBatch::gradient_scale * (sum of all losses).
  void run(const Step& step, const Load& load);
  // Called with the losses (tokens) of a micro-batch, those of its most likely tokens, and its
  // number; only on the last stage.
  using UseLosses = std::function<void(Tensor losses, Tensor smallest, int number)>;
  // Computes the losses only, one micro-batch after the other.
  void evaluate(const Step& step, const Load& load, const UseLosses& use = {});

  // Of the last stage.
  const Head& head() const { return chunks_.back().stage.head(); }
  bool is_last() const { return group_->rank() == group_->size() - 1; }

 private:
  // A buffer that may be in use by a send.
  struct Outgoing {
    Tensor buffer;  // (rows, hidden)
    Communicator::Work sending = {};
  };
  struct Chunk {
    Stage stage;
    std::vector<Communicator::Work> input_receives = {};     // by micro-batch
    std::vector<Communicator::Work> gradient_receives = {};  // by micro-batch
  };
  // Makes the list of actions for this number of micro-batches, unless it is the current one.
  void prepare(int micro_batches);
  void run_single_stage(const Step& step, const Load& load);
  void act(const Action& action, const Step& step, const Load& load);
  void forward(int chunk, int number, const Step& step);
  void send(Outgoing& from, const MicroBatch& batch, int to);
  void reclaim(Outgoing& buffer) { group_->wait(std::exchange(buffer.sending, {})); }
  Outgoing& gradient(int chunk, int number) {
    const std::vector<int>& of = slots_.gradient_of[chunk];
    return gradients_[static_cast<std::size_t>(of[number])];
  }
  Tensor rows(const Tensor& buffer, const MicroBatch& batch) const {
    return buffer.rows(0, scratch_->size(batch).rows());
  }
  const MicroBatch& batch(int number) const { return batches_[number]; }

  Backend* backend_;
  StageScratch* scratch_;
  Communicator* group_;
  PipelineShape shape_;          // of the last step
  std::vector<Action> actions_;  // of this rank, for shape_
  RankSlots planned_;            // of the largest step
  RankSlots slots_;              // for shape_
  std::vector<Chunk> chunks_;
  std::vector<Outgoing> gradients_;
  std::array<Outgoing, 2> outputs_;  // of stages
  OutputBuffers output_buffers_;
  std::vector<MicroBatch> batches_;  // of the step; those that were loaded
};

}  // namespace kintsugi
