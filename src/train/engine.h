#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "comm/grid.h"
#include "model/context_cut.h"
#include "model/initialize.h"
#include "optim/optimizer.h"
#include "parallel/copy_sums.h"
#include "parallel/layer_split.h"
#include "parallel/layout.h"
#include "parallel/pipeline.h"
#include "parallel/sharding.h"

namespace kintsugi {

struct EngineOptions {
  ModelConfig model;
  DType precision = DType::F32;
  Layout layout = {};                 // fitted
  std::int64_t batch = 1;             // sequences per step; counts where there is a pipeline
  std::int64_t length = 1;            // tokens per sequence
  std::int64_t classifier_chunk = 0;  // tokens of logits at a time; 0: chosen from the vocabulary
  OptimizerSettings optimizer = {};
  StateOffload offload = {};    // of the optimizer's state and the gradients
  bool offload_inputs = false;  // of blocks that are recomputed in full
  bool documents = false;       // batches come with positions and document starts
  bool reduce_in_bf16 = false;

  int micro_batches() const { return static_cast<int>(micro_batches_per_step(layout, batch)); }
};

// Token ids and what follows each of them, on the host: any number of whole sequences. Every data
// rank gets its own, as many as the others; ranks that share a model get the same.
struct TokenBatch {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> targets;              // negative: no loss there
  std::span<const std::int32_t> positions = {};       // only with EngineOptions::documents
  std::span<const std::int32_t> document_start = {};  // likewise
};

// What one optimizer step is told beside its tokens.
struct StepSettings {
  std::int64_t step = 1;  // counts from 1; with fp16, skipped steps count too
  double lr = 0;
  double loss_scale = 1.0;
  double dropout = 0.0;
  std::uint64_t seed = 0;
  std::int64_t first_sequence = 0;  // of this rank's batch, within the step's
  // Tokens with a loss in the batches of all data ranks: the sum of Engine::targets_of over all
  // ranks.
  double targets = -1;
};

// What a rank knows of a step by itself.
struct StepPart {
  double loss_sum = 0;       // its part: all ranks' parts together are the sum of the losses
  double gradient_norm = 0;  // of all ranks, before clipping; not finite: the step was skipped
};
// Of all ranks together.
struct StepResult {
  double loss = 0;           // nats per token that counts; 0 when none does
  double gradient_norm = 0;  // before clipping; not finite: the step was skipped
};

// One rank's part of the model, its memory and its optimizer on one device: one training step from
// tokens to updated weights, together with the other ranks.
class Engine {
 public:
  // Takes all memory from `memory`: the backend itself, or a PlanningAllocator when only arena() is
  // of interest. The groups are those of the layout and must outlive it.
  // `data`: the groups that train a parameter, where not all have those of DataGroups.
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options, const Groups& groups,
         const ParameterSet::DataGroupsOf& data = {});
  // On one rank.
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options);

  // Before the first pass, one of: fresh weights, or weights and state written by a loader after
  // prepare().
  void initialize(std::uint64_t seed);
  void prepare();

  // Tokens of the batch with a loss; none where another rank counts the same sequences.
  double targets_of(const TokenBatch& batch) const;
  // Queues a whole step and returns at once where the device works by itself; finish_step waits for
  // its result. The batch may be overwritten in between. Neither sums anything on host memory: what
  // the ranks must know of each other, the caller adds up.
  void begin_step(const TokenBatch& batch, const StepSettings& settings);
  StepPart finish_step();
  // A step by itself: adds up targets and losses, with an all-reduce each.
  StepResult step(const TokenBatch& batch, StepSettings settings);
  // This rank's part of the sum of the losses over the batch: all ranks' parts together are that of
  // all data ranks' batches.
  double evaluate(const TokenBatch& batch);

  const Arena& arena() const { return arena_; }
  const EngineOptions& options() const { return options_; }
  const Groups& groups() const { return *groups_; }
  const ParameterSet& parameters() const { return set_; }  // of this rank
  Backend& backend() { return *backend_; }
  const Sharding& sharding() const { return sharding_; }
  Sharding& sharding() { return sharding_; }
  Optimizer& optimizer() { return optimizer_; }
  // Weights, and the optimizer's master copy of them, from wherever they come.
  void write_weights(const ParameterSource& weights, const ParameterSource& master);

 private:
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options,
         std::unique_ptr<Groups> alone);
  // Where one micro-batch lies on the device.
  struct BatchSlot {
    Tensor ids, targets;         // (tokens)
    Tensor positions = {};       // (tokens)
    Tensor document_start = {};  // (context ranks x sequences, length), if any
  };
  BatchSlot allocate_batch();
  void upload_constants();
  double summed_over_ranks(double value);
  std::int64_t sequences_of(const TokenBatch& batch) const {
    return static_cast<std::int64_t>(batch.ids.size()) / options_.length;
  }
  int micro_batches_of(const TokenBatch& batch) const;
  bool is_repeatable(const MicroBatch& part) const;
  // Copies a micro-batch to the device: this rank's part of each sequence.
  MicroBatch upload(const TokenBatch& batch, int number);
  Tensor upload_part(Tensor to, std::span<const std::int32_t> whole, std::int64_t first,
                     std::int64_t count);
  // This rank's part of `count` sequences, in staging_ or where it is.
  const std::int32_t* part_of(std::span<const std::int32_t> whole, std::int64_t first,
                              std::int64_t count);

  Backend* backend_;
  EngineOptions options_;
  std::unique_ptr<Groups> alone_;
  const Groups* groups_;
  ContextCut cut_;
  Arena arena_;
  std::vector<StagePart> parts_;
  ParameterSet set_;
  Sharding sharding_;
  CopySums copies_;
  StageScratch scratch_;
  Pipeline pipeline_;
  Optimizer optimizer_;
  std::vector<BatchSlot> batches_;     // in turns
  Tensor token_rows_;                  // (tokens), where sequences are cut
  std::vector<std::int32_t> staging_;  // a part of a batch on its way to the device
  std::vector<std::int32_t> first_keys_;
  Tensor loss_sum_;                    // (1)
  std::array<double, 1> shared_ = {};  // a number on its way between the ranks
  double unscale_ = 1;                 // from its gradients to those of the mean loss
};

}  // namespace kintsugi
