#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "model/block.h"
#include "model/layers/embedding.h"
#include "model/layers/head.h"
#include "model/layers/layer_run.h"
#include "model/model_layers.h"
#include "model/parameter_store.h"
#include "model/shard.h"

namespace kintsugi {

// The loss of preference pairs (DPO) from the losses of tokens. It depends on sums over whole
// sequences, so a token's gradient is known only after the forward of the head: the head runs a
// second time, with the weights that this class computes. With context parallelism, the sums are
// all-reduced.
class PreferenceLoss {
 public:
  // `tokens` of a micro-batch on one of `context` ranks.
  PreferenceLoss(Arena& arena, DType dtype, std::int64_t tokens, int context,
                 const PreferenceOptions& options);

  // The most sequences of a micro-batch, of which each has a token on some context rank: an even
  // number.
  static std::int64_t most_sequences(std::int64_t tokens, int context) {
    return tokens * context / 2 * 2;
  }

  // Returns d loss / d token loss (tokens), and adds the sums over the pairs to totals (4):
  // Backend::preference_loss.
  Tensor weigh(const LayerRun& run, Tensor losses, Tensor totals) const;

 private:
  PreferenceOptions options_;
  Tensor sums_;     // (sequences)
  Tensor weights_;  // (tokens)
};

// Device buffers through which block inputs are copied to host memory and back. Blocks share
// kBuffers buffers in turn: block i always uses buffer i % kBuffers.
class InputOffload {
 public:
  InputOffload(Backend& backend, Arena& arena, DType dtype, Shape shape);

  Tensor buffer(int block) const { return at(block).tensor; }
  // Waits until the buffer can be overwritten. Call before writing to it.
  void reclaim(int block);
  // Starts the copy to host memory. Call after the block's forward.
  void send(int block, Tensor host);
  // Starts the copy back, after all operations queued so far. Call ahead of the block's backward.
  void fetch(int block, Tensor host);
  // Waits for the copy back. Call before the block's backward.
  void receive(int block);

 private:
  static constexpr int kBuffers = 3;  // one is being copied, one read, one written
  struct Buffer {
    Tensor tensor;
    Backend::Transfer to_host = {}, to_device = {};
  };
  Buffer& at(int block) { return buffers_[block % kBuffers]; }
  const Buffer& at(int block) const { return buffers_[block % kBuffers]; }

  Backend* backend_;
  std::array<Buffer, kBuffers> buffers_;
};

// The ranks that compute one micro-batch together.
struct ModelGroups {
  Communicator* tensor = nullptr;
  Communicator* context = nullptr;  // context parallelism: each rank has part of every sequence
  Communicator* experts = nullptr;  // data ranks with other experts; none: all are here
  bool sequence_parallel = false;
  Dispatch dispatch = Dispatch::AllGather;
  ContextMethod context_method = ContextMethod::Ring;
};

// The largest micro-batch of a rank, and what it keeps for the backward.
struct StageOptions {
  std::int64_t sequences = 1;      // per micro-batch
  std::int64_t length = 0;         // tokens of a sequence, before context parallelism
  std::int64_t max_positions = 0;  // rows of the RoPE table; 0: `length`
  Recompute recompute = Recompute::None;
  // Offload the inputs of fully recomputed blocks to host memory between forward and backward.
  bool offload_inputs = false;
  int recompute_every = 1;  // recompute layers 0, n, 2n, …; the others keep everything
  double z_loss = 0;        // coefficient of the mean of log^2 Z in the trained loss
  std::optional<PreferenceOptions> preference = {};  // micro-batches may have preference pairs
  bool training = true;               // false: no gradients; all blocks share one stash
  std::int64_t classifier_chunk = 0;  // tokens per chunk of logits; 0: chosen by vocabulary size
};

// What all stages of a rank share: tables, groups, and workspace for the stage that runs.
class StageScratch {
 public:
  StageScratch(Backend& backend, Arena& arena, const ParameterStore& store, ModelLayers layers,
               const ModelGroups& groups, const StageOptions& options);
  StageScratch(const StageScratch&) = delete;
  StageScratch& operator=(const StageScratch&) = delete;

  // Writes constant tables to the device. Not done in the constructor, so that a scratch can be
  // built only to plan its memory.
  void prepare();

  const ModelSpec& model() const { return layers_.spec(); }
  const ModelLayers& layers() const { return layers_; }
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
  // The declaration of a layer on this rank.
  Declaration declaration(int layer) const;
  Recompute recompute_of(int layer) const {
    return options_.training && layer % options_.recompute_every == 0 ? options_.recompute
                                                                      : Recompute::None;
  }
  LayerRanks layer_ranks() const {
    return {.tensor = context_.tensor.size(),
            .tensor_rank = context_.tensor.rank(),
            .sequence_parallel = context_.tensor.splits_rows(),
            .context = context_.context == nullptr ? 1 : context_.context->size(),
            .experts = context_.experts == nullptr ? 1 : context_.experts->size(),
            .experts_rank = context_.experts == nullptr ? 0 : context_.experts->rank(),
            .dispatch = dispatch_};
  }
  Tensor losses(std::int64_t tokens) const { return losses_.rows(0, tokens); }
  // (tokens), the losses of the most likely tokens, in the memory of a gradient that only a
  // backward uses. Only with StageOptions::training.
  Tensor smallest_losses(std::int64_t tokens) const {
    return Tensor(stream_.dnormed.data(), losses_.dtype(), {tokens});
  }
  // Of a micro-batch that predicts; after smallest_losses() in the same memory.
  LikelyTokens likely_tokens(std::int64_t tokens) const;
  const PreferenceLoss& preference() const { return *preference_; }
  // (tokens), with StageOptions::z_loss
  Tensor squared_log_z(std::int64_t tokens) const { return squared_log_z_.rows(0, tokens); }

 private:
  void allocate_attention(Arena& arena, const std::vector<Declaration>& blocks,
                          ContextMethod method);
  void allocate_sums(Arena& arena, const std::vector<Declaration>& blocks);

  ModelLayers layers_;
  StageOptions options_;
  Dispatch dispatch_;
  BatchSize size_;
  std::unique_ptr<ContextAttention> attention_;
  LayerContext context_;
  std::optional<SharedMemory> shared_;
  StreamBuffers stream_;
  Tensor losses_;         // (tokens)
  Tensor squared_log_z_;  // (tokens), with z_loss
  std::optional<PreferenceLoss> preference_;
};

// The layers of one stage (of one chunk, if the pipeline is interleaved).
struct StageLayers {
  int first_layer = 0, last_layer = 0;  // [first, last)
  bool embedding = true, head = true;
  bool operator==(const StageLayers&) const = default;
};

// Whether a block's input is offloaded to host memory. The first block's input is the stage's
// receive buffer, and the last block's is needed again at once: neither is offloaded.
bool offloads(const StageScratch& scratch, const StageLayers& range, int block);

// Memory of the micro-batches between forward and backward. The stages of a rank share it.
struct StageMemory {
  std::vector<Tensor> inputs;                    // (rows, hidden)
  std::vector<std::vector<BlockMemory>> blocks;  // by stash and block
  std::vector<std::vector<Tensor>> host_inputs;  // the same, for offloaded inputs
};
// Allocates `inputs` input buffers and one stash for each of `ranges`.
StageMemory allocate_stage_memory(const StageScratch& scratch, Arena& arena, int inputs,
                                  const std::vector<StageLayers>& ranges);

// The index of the buffer that a micro-batch uses, by its number within a step.
struct StageSlots {
  std::vector<int> inputs = {0};      // the stage's input, until the end of its backward
  std::vector<int> stashes = {0};     // between forward and backward
  std::vector<int> embeddings = {0};  // the same, for the embedding's saved tensors
  std::vector<int> weights = {};  // between backward_input and backward_weight; empty: never split
};

// Consecutive layers of the model. `number` is the number of a micro-batch within the step. The
// constructor allocates all memory from the arena.
class Stage {
 public:
  // `hooks`, if any, are called before and after each use of a bucket; null: all buckets are always
  // in memory.
  Stage(const StageScratch& scratch, Arena& arena, const StageLayers& range,
        const StageMemory& memory, const StageSlots& slots, BucketHooks* hooks);

  const StageLayers& range() const { return range_; }
  // Changes the buffers of the micro-batches, within the memory of the constructor's slots.
  void use(const StageSlots& slots);
  // The input buffer of a micro-batch, (rows, hidden). A stage without an embedding receives into
  // it.
  Tensor input(const MicroBatch& batch, int number) const;

  // Computes the last block's output from tokens or from input().
  void forward(const MicroBatch& batch, int number, Tensor output,
               const std::vector<LayerCache>* caches = nullptr);
  // Computes the losses from that output, times MicroBatch::weights, and adds their sum to
  // loss_sum (1). If MicroBatch::gradient_scale is not 0, also computes the gradients of
  // gradient_scale * (loss + z-loss): of `output` into `gradient` (rows, hidden), and of the head's
  // parameters. With StageOptions::z_loss, loss_sum is (2), and a training forward adds the sum of
  // log^2 Z to its second element. If the batch is scored_only, StageScratch::smallest_losses() is
  // computed too. If the batch has preference pairs, the loss is theirs, and loss_sum is (4): the
  // totals of Backend::preference_loss.
  void loss(const MicroBatch& batch, Tensor output, Tensor gradient, Tensor loss_sum);
  // `gradient` is that of the output on entry and of the input on return, if a layer before the
  // stage is trained.
  void backward(const MicroBatch& batch, int number, Tensor gradient);
  // The same in two halves, for zero-bubble schedules.
  void backward_input(const MicroBatch& batch, int number, Tensor gradient);
  void backward_weight(const MicroBatch& batch, int number);

  const Head& head() const { return *head_; }

 private:
  int layers() const { return range_.last_layer - range_.first_layer; }
  // The block with which a backward ends: below it, nothing is trained.
  int last_backward() const {
    return std::clamp(scratch_->layers().first_trained - range_.first_layer, 0, layers());
  }
  // Whether the stage has both the embedding and a head that is tied to it.
  bool tied_in_stage() const { return scratch_->model().tied && range_.embedding && range_.head; }
  // A LayerRun with the memory of a block. `halved`: with the memory kept between the halves of a
  // backward.
  LayerRun block_run(const MicroBatch& batch, int number, int block, bool halved = false) const;
  LayerRun embedding_run(const MicroBatch& batch, int number) const;
  Tensor block_input(const MicroBatch& batch, int number, int block) const;
  bool offloads(int block) const { return kintsugi::offloads(*scratch_, range_, block); }
  Tensor host_input(const MicroBatch& batch, int number, int block) const;
  // Waits for the offloaded input of a block and prefetches that of the block before it. Call
  // before the block's backward.
  void fetch_input(const MicroBatch& batch, int number, int block);
  // Stage::loss of tokens and of preference pairs, once weights and gradients are in memory.
  void token_loss(const MicroBatch& batch, Tensor output, Tensor gradient, Tensor loss_sum);
  void pair_loss(const MicroBatch& batch, Tensor output, Tensor gradient, Tensor totals);
  void backward_blocks(const MicroBatch& batch, int number, Tensor gradient, bool halved);
  void backward_embedding(const MicroBatch& batch, int number, Tensor gradient);
  void call_hooks(const auto& call) const {
    if (hooks_ != nullptr) call(*hooks_);
  }

  const StageScratch* scratch_;
  StageLayers range_;
  BucketHooks* hooks_;
  std::optional<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::optional<Head> head_;
  StageMemory memory_;
  StageSlots slots_;
  std::vector<BlockMemory> embeddings_;
  std::optional<InputOffload> offload_;
  std::vector<std::vector<Tensor>> workspace_;             // by block; shared
  std::vector<std::vector<KeptMemory>> kept_;              // by slot and block
  BucketHooks::Buckets embedding_buckets_, head_buckets_;  // of the weights that they read
  std::vector<BucketHooks::Buckets> block_buckets_;
};

}  // namespace kintsugi
