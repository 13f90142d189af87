#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/block_memory.h"
#include "model/bucket_hooks.h"
#include "model/input_offload.h"
#include "model/layers/embedding.h"
#include "model/layers/head.h"

namespace kintsugi {

// The ranks that compute one micro-batch together.
struct ModelGroups {
  Communicator* tensor = nullptr;
  Communicator* context = nullptr;  // each has a part of every sequence
  bool sequence_parallel = false;
};

// How large a rank's passes get and what they keep.
struct StageOptions {
  std::int64_t sequences = 1;      // per micro-batch
  std::int64_t length = 0;         // tokens of a whole sequence
  std::int64_t max_positions = 0;  // rotation table's length; 0: `length`
  Recompute recompute = Recompute::None;
  // Inputs of blocks that are recomputed in full lie in host memory between forward and backward.
  bool offload_inputs = false;
  int recompute_every = 1;            // of layers 0, n, 2 n, …; the others keep everything
  bool training = true;               // false: no gradients, one stash for all blocks
  std::int64_t classifier_chunk = 0;  // tokens of logits at a time; 0: chosen from the vocabulary
};

// What all stages of a rank share: tables, groups, and the memory of whichever runs.
class StageScratch {
 public:
  StageScratch(Backend& backend, Arena& arena, const ParameterStore& store,
               const ModelConfig& config, const ModelGroups& groups, const StageOptions& options);
  StageScratch(const StageScratch&) = delete;
  StageScratch& operator=(const StageScratch&) = delete;

  // Writes constant tables to the device. Apart from construction, so that a scratch can be built
  // for its memory plan alone.
  void prepare();

  const ModelSpec& model() const { return model_; }
  const StageOptions& options() const { return options_; }
  const BatchSize& size() const { return size_; }  // of the largest micro-batch
  BatchSize size(const MicroBatch& batch) const {
    return {batch.sequences, batch.length, size_.row_parts};
  }
  const LayerContext& context() const { return context_; }
  const SharedMemory& shared() const { return *shared_; }
  LayerRun run(const MicroBatch& batch) const {
    return {.context = context_,
            .batch = batch,
            .size = size(batch),
            .stream = stream_.first(size(batch))};
  }
  // Of a layer on this rank, whose parameters are those of the store.
  Declaration declaration(int layer) const;
  Recompute recompute_of(int layer) const {
    return options_.training && layer % options_.recompute_every == 0 ? options_.recompute
                                                                      : Recompute::None;
  }
  LayerRanks layer_ranks() const {
    return {context_.tensor.size(), context_.tensor.rank(), context_.tensor.splits_rows(),
            context_.context == nullptr ? 1 : context_.context->size()};
  }
  Tensor losses(std::int64_t tokens) const { return losses_.rows(0, tokens); }

 private:
  ModelSpec model_;
  StageOptions options_;
  BatchSize size_;
  std::optional<RingAttention> ring_;
  LayerContext context_;
  std::optional<SharedMemory> shared_;
  StreamBuffers stream_;
  Tensor losses_;  // (tokens)
};

// Which layers a stage has.
struct StagePart {
  int first_layer = 0, last_layer = 0;  // [first, last)
  bool embedding = true, head = true;
  bool operator==(const StagePart&) const = default;
};

// Whether a block's input waits in host memory. The first one's belongs to whoever sends it, the
// last one's is needed again at once.
bool offloads(const StageScratch& scratch, const StagePart& part, int block);

// What micro-batches under way keep; the stages of a rank share it.
struct StageMemory {
  std::vector<Tensor> inputs;                    // (rows, hidden)
  std::vector<std::vector<BlockMemory>> blocks;  // by block
  std::vector<std::vector<Tensor>> host_inputs;  // beside them, where they are offloaded
};
// With memory for the blocks of each of `parts`.
StageMemory allocate_stage_memory(const StageScratch& scratch, Arena& arena, int inputs,
                                  const std::vector<StagePart>& parts);

// Which buffer a micro-batch takes, by its number within a step.
struct StageSlots {
  std::vector<int> inputs = {0};      // received or made, until its backward is over
  std::vector<int> stashes = {0};     // between forward and backward
  std::vector<int> embeddings = {0};  // the same, of the stage's own
  std::vector<int> weights = {};      // between the halves of a backward; none: it is never halved
};

// A run of layers. Micro-batches are numbered within a step. Memory is taken from the arena when it
// is built.
class Stage {
 public:
  // `hooks`, if any, are told which buckets are in use; without, all are always there.
  Stage(const StageScratch& scratch, Arena& arena, const StagePart& part, const StageMemory& memory,
        const StageSlots& slots, BucketHooks* hooks);

  const StagePart& part() const { return part_; }
  // Where a micro-batch's residual stream comes in, (rows, hidden), unless it is made from tokens.
  Tensor input(const MicroBatch& batch, int number) const;

  // From tokens, or input(), to the last block's output.
  void forward(const MicroBatch& batch, int number, Tensor output,
               std::vector<LayerCache>* caches = nullptr);
  // From that to the losses, whose sum is added to loss_sum (1). With a gradient_scale other than
  // 0: `gradient` (rows, hidden) becomes that of gradient_scale * loss, and the head's parameters
  // get theirs.
  void loss(const MicroBatch& batch, Tensor output, Tensor gradient, double gradient_scale,
            Tensor loss_sum);
  // `gradient` is of the output on entry and of the input on return.
  void backward(const MicroBatch& batch, int number, Tensor gradient);
  // The same in two halves.
  void backward_input(const MicroBatch& batch, int number, Tensor gradient);
  void backward_weight(const MicroBatch& batch, int number);

  const Head& head() const { return *head_; }

 private:
  int layers() const { return part_.last_layer - part_.first_layer; }
  bool tied_here() const { return scratch_->model().tied && part_.embedding && part_.head; }
  // With the memory of a block for this micro-batch; in `kept` if its backward comes in halves.
  LayerRun block_run(const MicroBatch& batch, int number, int block, bool halved = false) const;
  LayerRun embedding_run(const MicroBatch& batch, int number) const;
  Tensor block_input(const MicroBatch& batch, int number, int block) const;
  bool offloads(int block) const { return kintsugi::offloads(*scratch_, part_, block); }
  Tensor host_input(const MicroBatch& batch, int number, int block) const;
  // Before a block's backward: its input is there, the one before it under way.
  void bring_input(const MicroBatch& batch, int number, int block);
  void backward_blocks(const MicroBatch& batch, int number, Tensor gradient, bool halved);
  void backward_embedding(const MicroBatch& batch, int number, Tensor gradient);
  template <class F>
  void told(const F& tell) const {
    if (hooks_ != nullptr) tell(*hooks_);
  }

  const StageScratch* scratch_;
  StagePart part_;
  BucketHooks* hooks_;
  std::optional<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::optional<Head> head_;
  StageMemory memory_;
  StageSlots slots_;
  std::vector<BlockMemory> embeddings_;
  std::optional<InputOffload> offload_;
  std::vector<std::vector<Tensor>> workspace_;             // by block: shared
  std::vector<std::vector<KeptMemory>> kept_;              // by block
  BucketHooks::Buckets embedding_buckets_, head_buckets_;  // whose weights these read
  std::vector<BucketHooks::Buckets> block_buckets_;
};

}  // namespace kintsugi
