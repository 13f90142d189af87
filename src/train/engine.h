#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/grid.h"
#include "core/step_scalars.h"
#include "model/initialize.h"
#include "model/shard.h"
#include "optim/optimizer.h"
#include "parallel/copy_sums.h"
#include "parallel/layout.h"
#include "parallel/pipeline.h"
#include "parallel/sharding.h"

namespace kintsugi {

struct EngineOptions {
  ModelConfig model;
  std::string base = {};  // with adapters: the directory of the model that they are for
  DType precision = DType::F32;
  Layout layout = {};                 // complete (fit_layout)
  std::int64_t batch = 1;             // most sequences per step; used by pipelines only
  std::int64_t length = 1;            // tokens per sequence
  std::int64_t classifier_chunk = 0;  // tokens per logits chunk; 0: chosen by vocabulary size
  double z_loss = 0;                  // coefficient of the mean of log^2 Z in the trained loss
  std::optional<PreferenceOptions> preference = {};  // train on pairs: TokenBatch::sequences
  bool skip_step = false;                            // steps may have limits
  OptimizerSettings optimizer = {};
  StateOffload offload = {};    // optimizer state and gradients
  bool offload_inputs = false;  // inputs of blocks with full recomputation
  bool documents = false;       // batches come with positions and document starts
  bool weights = false;         // batches come with weights of the losses
  bool reduce_in_bf16 = false;

  int micro_batches() const { return static_cast<int>(micro_batches_per_step(layout, batch)); }
};

// One sequence of a preference pair: tokens [begin, end) of a row of a batch.
struct TokenSequence {
  std::int64_t row = 0, begin = 0, end = 0;
  double reference = 0;  // log-probability of its targets in the reference model
};

// Token ids and their targets in host memory: any number of complete sequences. Every data rank has
// its own batch of the same size; the ranks of one model copy have the same batch.
struct TokenBatch {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> targets;              // negative: no loss
  std::span<const std::int32_t> positions = {};       // only with EngineOptions::documents
  std::span<const std::int32_t> document_start = {};  // only with EngineOptions::documents
  // Losses and their gradients are multiplied by these; only with EngineOptions::weights.
  // Engine::score ignores them.
  std::span<const float> weights = {};
  // Preferred and rejected ones in turn, in the order of rows, both of a pair in one row; only with
  // EngineOptions::preference. Engine::score ignores them.
  std::span<const TokenSequence> sequences = {};
  // Tokens per sequence; 0: EngineOptions::length. Only Engine::score and Engine::predict accept
  // shorter sequences, and only without context parallelism.
  std::int64_t length = 0;
};

// Inputs of an optimizer step besides its tokens.
struct StepSettings {
  std::int64_t step = 1;  // counts from 1; with fp16, skipped steps count too
  double lr = 0;
  double loss_scale = 1.0;
  double dropout = 0.0;
  std::uint64_t seed = 0;
  std::int64_t first_sequence = 0;  // index of this rank's first sequence in the global batch
  // What the loss is divided by: the sum of Engine::targets_of over all ranks.
  double targets = -1;
  StepLimits limits = {};       // the same on all ranks; only with EngineOptions::skip_step
  bool fp8_statistics = false;  // of the first micro-batch; only with ModelConfig::fp8
};

// What a sum of losses is divided by. Without any target, the sum is 0 too.
inline double loss_divisor(double targets) { return targets > 0 ? targets : 1.0; }

// Sums of a forward, in the order of Engine::scalars(): first that of the losses of tokens (times
// their weights) or of preference pairs. Their sums over all ranks are those of the batches of all
// data ranks. Valid until the next forward of the engine.
using LossSums = std::span<double>;

// The result of a step on one rank, before the all-reduce of the loss.
struct LocalStepResult {
  LossSums sums = {};
  double gradient_norm = 0;  // global, before clipping; not finite: the step was skipped
  bool outlier = false;      // skipped because it was above StepSettings::limits
};
// The result over all ranks.
struct StepResult {
  double loss = 0;            // mean of tokens with a loss (weighted) or of pairs; 0: there is none
  double gradient_norm = 0;   // before clipping; not finite: the step was skipped
  bool outlier = false;       // skipped because it was above StepSettings::limits
  ScalarValues scalars = {};  // those of Engine::scalars()

  bool skipped() const { return outlier || !std::isfinite(gradient_norm); }
};

// One rank's shard of the model with its memory and its optimizer on one device. Runs training
// steps, from tokens to updated weights, together with the other ranks.
class Engine {
 public:
  // Allocates everything from `memory`: the backend, or a PlanningAllocator if only arena() is
  // needed. `groups` must match the layout and outlive the engine. `data` returns the data groups
  // of a parameter; by default all parameters use those of DataGroups.
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options, const Groups& groups,
         const ParameterSet::DataGroupsOf& data = {});
  // On one rank.
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options);

  // Call one of these before the first step: initialize() for random weights, or prepare() before
  // a loader writes weights and state.
  void initialize(std::uint64_t seed);
  void prepare();

  // StepSettings::fp8_statistics of the last step with them, on this rank: (sites, 3, 4), as in
  // MicroBatch::fp8_statistics.
  std::vector<float> fp8_statistics();

  // How often the tokens of the last step chose each expert, on this rank: (layers, experts). The
  // sums over all ranks are those of the step.
  std::vector<double> expert_counts();
  // Those sums; all ranks call it.
  std::vector<double> total_expert_counts();
  // The same for the choices that each layer dropped; empty without BalanceConfig::capacity.
  std::vector<double> total_dropped_choices();
  // Follows the total counts of a step that was not skipped: moves the biases of routers, and sets
  // the counts of the balance loss of the next step.
  void balance_experts(std::span<const double> total_counts);
  bool balances_experts() const {
    const BalanceConfig& balance = options_.model.balance;
    return balance.bias_speed > 0 || balance.counts_last_step();
  }
  // With BalanceConfig::counts_last_step: total counts of the last step; empty: they were even.
  // Part of the state of a run.
  void set_balance_counts(std::span<const double> total_counts);

  // What the losses of the batch are divided by: its preference pairs, or its tokens with a loss,
  // or the sum of their weights. 0 if another rank counts the same sequences.
  double targets_of(const TokenBatch& batch) const;
  // begin_step queues a step and returns without waiting for the device; finish_step waits for the
  // result. The batch may be overwritten in between. Neither communicates through host memory: the
  // caller reduces targets and losses over the ranks.
  void begin_step(const TokenBatch& batch, const StepSettings& settings);
  LocalStepResult finish_step();
  // Called once, in the next begin_step, before it queues the update of weights and state.
  void before_next_update(std::function<void()> call) { before_update_ = std::move(call); }
  // A complete step, with one all-reduce for the targets and one for the losses.
  StepResult step(const TokenBatch& batch, StepSettings settings);
  // Forward only. Returns this rank's contribution to the sums.
  LossSums evaluate(const TokenBatch& batch);
  // Forward only. Calls `use` for each token with a target: its index in the batch, its loss and
  // the loss of the most likely token, which is equal if the target is that token. Of the ranks of
  // one model copy, exactly one calls it for a token.
  using UseLoss = std::function<void(std::size_t token, double loss, double smallest)>;
  void score(const TokenBatch& batch, const UseLoss& use);
  // Forward only. Calls `use` for each token with a target: its index in the batch, the largest
  // logit of the next token in this rank's shard of the vocabulary, and the token that has it, the
  // first of equals. The logit is infinite if one of the shard is NaN. Of the ranks of one model
  // copy, one of each shard calls it for a token.
  using UseToken = std::function<void(std::size_t token, double logit, std::int32_t id)>;
  void predict(const TokenBatch& batch, const UseToken& use);
  // Forward only, of a classifier. Calls `use` for each token with a target: its index in the batch
  // and the logits of the labels. Of the ranks of one model copy, exactly one calls it for a token.
  // Returns the same as evaluate().
  using UseLogits = std::function<void(std::size_t token, std::span<const double> logits)>;
  LossSums classify(const TokenBatch& batch, const UseLogits& use);
  // The sequences of this length in a micro-batch: as many as have the tokens of a full one.
  std::int64_t micro_sequences(std::int64_t length) const;

  const StepScalars& scalars() const { return scalars_; }  // what a forward sums
  const Arena& arena() const { return arena_; }
  const EngineOptions& options() const { return options_; }
  const Groups& groups() const { return *groups_; }
  const ParameterSet& parameters() const { return set_; }  // on this rank
  Backend& backend() { return *backend_; }
  const Sharding& sharding() const { return sharding_; }
  Sharding& sharding() { return sharding_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  // Fills the weights, the optimizer's master weights and the average of the weights, if there is
  // one. By default the average starts as a copy of the master weights.
  void write_weights(const ParameterSource& weights, const ParameterSource& master,
                     const ParameterSource& average);
  void write_weights(const ParameterSource& weights, const ParameterSource& master) {
    write_weights(weights, master, master);
  }

 private:
  Engine(Backend& backend, Allocator& memory, const EngineOptions& options,
         std::unique_ptr<Groups> own_groups);
  // Device buffers of one micro-batch.
  struct MicroBatchBuffers {
    Tensor ids, targets;                           // (tokens)
    Tensor positions = {};                         // (tokens)
    Tensor document_start = {};                    // (context ranks x sequences, length), optional
    Tensor weights = {};                           // (tokens), optional
    Tensor pair_ranges = {}, pair_reference = {};  // (sequences, 2) and (sequences), optional
  };
  MicroBatchBuffers allocate_batch();
  void upload_constants();
  void upload_positions(const ContextShard& shard, std::int64_t sequences);  // without documents
  void sum_over_ranks(std::span<double> values);
  // Moves the biases of routers by BalanceConfig::bias_speed: up if the expert was chosen less
  // often than the mean of its layer, down if more often.
  void move_biases(std::span<const double> total_counts);
  // Whether this rank's token losses count: every rank of a tensor group has the same ones.
  bool counts_losses() const { return groups_->coordinates.tp == 0 && pipeline_.is_last(); }
  // The same for loss_sums_: every context rank has the same pairs.
  bool counts_sums() const {
    return counts_losses() && (!options_.preference || groups_->coordinates.cp == 0);
  }
  // loss_total_ = the sum of the losses of all ranks, on the device.
  void sum_losses_on_device();
  LossSums read_loss_sums();  // loss_sums_, or zeros if another rank counts the same
  std::int64_t length_of(const TokenBatch& batch) const {
    return batch.length > 0 ? batch.length : options_.length;
  }
  ContextShard shard_of(const TokenBatch& batch) const {
    return {context_shard_.ranks, context_shard_.rank, length_of(batch), context_shard_.method};
  }
  std::int64_t sequences_of(const TokenBatch& batch) const {
    return static_cast<std::int64_t>(batch.ids.size()) / length_of(batch);
  }
  int micro_batches_of(const TokenBatch& batch) const;
  // Calls use(local, token) for each target of a micro-batch on this rank: its index there and in
  // the batch.
  void for_each_target(const TokenBatch& batch, int number, const auto& use) const;
  bool is_repeatable(const MicroBatch& micro) const;
  // Pipeline::evaluate of the tokens alone, in sequences of any length.
  void evaluate_plain(const TokenBatch& batch, bool predicts, const Pipeline::UseLosses& use);
  // Copies this rank's context shard of a micro-batch to the device. `plain`: without weights and
  // preference pairs.
  MicroBatch upload(const TokenBatch& batch, int number, bool plain = false);
  Tensor upload_shard(Tensor to, const ContextShard& shard, std::span<const std::int32_t> whole,
                      std::int64_t first, std::int64_t count);
  // The pairs in rows [first, first + count) of the batch.
  void upload_pairs(MicroBatch& micro, const MicroBatchBuffers& slot, const TokenBatch& batch,
                    std::int64_t first, std::int64_t count);
  void upload_numbers(Tensor to, std::span<const double> numbers);
  Tensor upload_weights(Tensor to, const ContextShard& shard, std::span<const float> whole,
                        std::int64_t first, std::int64_t count);
  // This rank's context shard of `count` sequences: in staging_.tokens, or a pointer into `whole`.
  const std::int32_t* context_shard_of(const ContextShard& shard,
                                       std::span<const std::int32_t> whole, std::int64_t first,
                                       std::int64_t count);

  Backend* backend_;
  EngineOptions options_;
  std::unique_ptr<Groups> own_groups_;  // only without given groups
  const Groups* groups_;
  ContextShard context_shard_;
  Arena arena_;
  std::vector<StageLayers> chunks_;
  ParameterSet set_;
  Sharding sharding_;
  CopySums copies_;
  StageScratch scratch_;
  Pipeline pipeline_;
  Optimizer optimizer_;
  std::vector<MicroBatchBuffers> batches_;  // used in rotation
  Tensor token_rows_;                       // (tokens), with context parallelism
  // Host copies before an upload.
  struct Staging {
    std::vector<std::int32_t> tokens, first_keys, pairs;
    std::vector<double> numbers;     // before they are rounded
    std::vector<std::byte> rounded;  // and after
  } staging_;
  Tensor fp8_statistics_;
  struct {
    Tensor counts;      // (layers, experts)
    Tensor bias_steps;  // the same; what is added to biases
    Tensor loads;       // the same; MicroBatch::expert_loads
    Tensor dropped;     // (layers)
  } experts_;
  StepScalars scalars_;
  Tensor loss_sums_;                     // (sums), as scalars_ declares them
  std::vector<double> host_sums_;        // the same on the host
  Tensor loss_total_;                    // (1), over all ranks; only with EngineOptions::skip_step
  bool limited_ = false;                 // whether the last step had limits
  std::function<void()> before_update_;  // of the next step; may be empty
  double unscale_ = 1;                   // gradients times this are those of the mean loss
};

}  // namespace kintsugi
