#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "comm/local_communicator.h"
#include "model/initialize.h"
#include "model/stage.h"
#include "optim/optimizer.h"
#include "parallel/sharding.h"

namespace kintsugi {

struct EngineOptions {
  ModelConfig model;
  DType precision = DType::F32;
  StageOptions stage;
  AdamWSettings adamw;
  bool documents = false;  // batches come with positions and document starts
  int zero = 0;            // what the data ranks share: ShardingOptions::zero
  bool reduce_in_bf16 = false;
};

// Token ids and what follows each of them, on the host: any number of whole sequences. Every data
// rank gets its own, as many as the others.
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
};

// Of all data ranks together.
struct StepResult {
  double loss = 0;           // nats per token that counts; 0 when none does
  double gradient_norm = 0;  // before clipping; not finite: the step was skipped
};

// The model, its memory and its optimizer on one device: one training step from tokens to updated
// weights, together with the other data ranks.
class Engine {
 public:
  // Takes all memory from `memory`: the backend itself, or a PlanningAllocator when only arena() is
  // of interest.
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options,
         const DataGroups& groups);
  // On one rank.
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options);

  // Before the first pass, one of: fresh weights, or weights and state written by a loader after
  // prepare().
  void initialize(std::uint64_t seed);
  void prepare();

  // Queues a whole step and returns at once where the device works by itself; finish_step waits for
  // its result. The batch may be overwritten in between.
  void begin_step(const TokenBatch& batch, const StepSettings& settings);
  StepResult finish_step();
  StepResult step(const TokenBatch& batch, const StepSettings& settings) {
    begin_step(batch, settings);
    return finish_step();
  }
  // The sum of the losses over all tokens of this rank's batch.
  double evaluate(const TokenBatch& batch);

  const Arena& arena() const { return arena_; }
  const EngineOptions& options() const { return options_; }
  const ParameterSet& parameters() const { return set_; }
  Backend& backend() { return *backend_; }
  const Sharding& sharding() const { return sharding_; }
  Sharding& sharding() { return sharding_; }
  Optimizer& optimizer() { return optimizer_; }
  // Weights, and the optimizer's master copy of them, from wherever they come.
  void write_weights(const ParameterSource& weights, const ParameterSource& master);

 private:
  double summed_over_ranks(double value);
  // Copies sequences [first, first + count) to the device.
  MicroBatch upload(const TokenBatch& batch, std::int64_t first, std::int64_t count);

  Backend* backend_;
  EngineOptions options_;
  Arena arena_;
  ParameterSet set_;
  LocalCommunicator alone_;
  DataGroups groups_;
  Sharding sharding_;
  Stage stage_;
  Optimizer optimizer_;
  Tensor ids_, targets_, positions_;   // (micro-batch tokens)
  Tensor document_start_;              // (micro-batch sequences, length), if any
  Tensor loss_sum_;                    // (1)
  std::array<double, 1> shared_ = {};  // a number on its way between the ranks
  double counted_ = 1;                 // tokens with a loss in the step under way
  double unscale_ = 1;                 // from its gradients to those of the mean loss
};

}  // namespace kintsugi
