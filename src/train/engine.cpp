#include "train/engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/phase.h"
#include "core/error.h"
#include "model/families/family.h"
#include "model/fp8.h"
#include "model/lora.h"
#include "model/objective_scalars.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostScalars = 64;  // that a step may sum

// A sum that layers declare (Declaration::sum), per target.
DeclaredScalar layer_scalar(const SumSpec& sum) {
  const std::string text(sum.name);
  return {.names = {.json = text,
                    .tag = "train/" + text,
                    .prometheus = {.name = "kintsugi_" + text},
                    .help = "What layers add to " + text + " in the last step, per target."},
          .factor = sum.factor};
}

const EngineOptions& checked(const EngineOptions& options, const Groups& groups) {
  KINTSUGI_CHECK(!options.preference || options.z_loss == 0, "preference pairs with a z-loss");
  KINTSUGI_CHECK(groups.grid == grid_of(options.layout, options.model),
                 "the groups do not match the layout {}", to_string(options.layout));
  return options;
}

StageOptions stage_options(const EngineOptions& options) {
  return {.sequences = options.layout.micro_batch,
          .length = options.length,
          .recompute = options.layout.recompute,
          .offload_inputs = options.offload_inputs,
          .recompute_every = options.layout.recompute_every,
          .z_loss = options.z_loss,
          .preference = options.preference,
          .classifier_chunk = options.classifier_chunk};
}

PipelineShape pipeline_shape(const EngineOptions& options) {
  const Layout& layout = options.layout;
  if (layout.pp == 1) return {};  // no pipeline
  return {.kind = layout.schedule,
          .stages = layout.pp,
          .micro_batches = options.micro_batches(),
          .chunks = layout.chunks};
}

}  // namespace

Engine::Engine(Backend& backend, Allocator& memory, const EngineOptions& options)
    : Engine(backend, memory, options, std::make_unique<Groups>(single_rank_groups(backend))) {}

Engine::Engine(Backend& backend, Allocator& memory, const EngineOptions& options,
               std::unique_ptr<Groups> own_groups)
    : Engine(backend, memory, options, *own_groups) {
  own_groups_ = std::move(own_groups);
}

Engine::Engine(Backend& backend, Allocator& memory, const EngineOptions& options,
               const Groups& groups, const ParameterSet::DataGroupsOf& data)
    : backend_(&backend),
      options_(checked(options, groups)),
      groups_(&groups),
      context_shard_{groups[GroupKind::Cp].size(), groups[GroupKind::Cp].rank(), options.length,
                     options.layout.context},
      arena_(memory),
      chunks_(stage_layers(checked_split(options.model, options.layout.pp * options.layout.chunks,
                                         options.layout.split),
                           options.layout.pp, groups.coordinates.pp)),
      set_(options.model, model_shard(chunks_, options.layout, groups.coordinates), data),
      sharding_(backend, arena_, set_, groups,
                {.zero = options.layout.zero,
                 .precision = options.precision,
                 .reduce_in_bf16 = options.reduce_in_bf16,
                 .tied = options.model.tied,
                 .halved_backward =
                     options.layout.pp > 1 && options.layout.schedule == PipelineKind::ZeroBubbleH1,
                 .offload_gradients = options.offload.gradients,
                 .keep_fp8_weights = options.model.fp8.keep_weights,
                 .unrounded_fp8_weights = !options.offload.on && !options.offload.gradients}),
      copies_(backend, arena_, sharding_, groups),
      scratch_(backend, arena_, sharding_.store(), options.model,
               {.tensor = &groups[GroupKind::Tp],
                .context = &groups[GroupKind::Cp],
                .experts = &groups[GroupKind::Experts],
                .sequence_parallel = options.layout.sequence_parallel,
                .dispatch = options.layout.dispatch,
                .context_method = options.layout.context},
               stage_options(options)),
      pipeline_(backend, arena_, scratch_, chunks_, pipeline_shape(options), groups[GroupKind::Pp],
                &sharding_),
      optimizer_(backend, arena_, sharding_, options.optimizer, options.offload),
      scalars_(objective_scalars(options.z_loss, options.preference.has_value())) {
  const int slots = options.layout.pp == 1 ? 1 : options.micro_batches();
  for (int i = 0; i < slots; ++i) batches_.push_back(allocate_batch());
  const std::int64_t tokens = scratch_.size().tokens();
  if (context_shard_.ranks > 1) {
    token_rows_ = arena_.allocate(Region::Workspace, "batch", DType::I32, {tokens});
    staging_.tokens.reserve(static_cast<std::size_t>(tokens));
    staging_.first_keys.reserve(static_cast<std::size_t>(tokens * context_shard_.ranks));
  }
  loss_sums_ = arena_.allocate(Region::Workspace, "scalars", accumulator_of(options.precision),
                               {static_cast<std::int64_t>(scalars_.sums())});
  for (const SumSpec& sum : scratch_.context().sums.specs) scalars_.add(layer_scalar(sum));
  KINTSUGI_CHECK(scalars_.sums() <= kMostScalars, "a step sums {} scalars", scalars_.sums());
  host_sums_.resize(scalars_.sums());
  if (options.model.fp8.on())
    fp8_statistics_ = arena_.allocate(
        Region::Workspace, "fp8 statistics", DType::F32,
        {static_cast<std::int64_t>(fp8_sites(model_spec(options.model)).size()), 3, 4});
  const auto per_expert = [&](bool used) {
    if (!used) return Tensor();
    return arena_.allocate(Region::Workspace, "expert counts", accumulator_of(options.precision),
                           {options.model.layers, options.model.experts->count});
  };
  experts_ = {.counts = per_expert(options.model.experts.has_value()),
              .bias_steps = per_expert(options.model.balance.bias_speed > 0),
              .loads = per_expert(options.model.balance.counts_last_step()),
              .dropped = {}};
  if (options.model.balance.capacity > 0)
    experts_.dropped = arena_.allocate(Region::Workspace, "expert counts",
                                       accumulator_of(options.precision), {options.model.layers});
  if (options.skip_step)
    loss_total_ =
        arena_.allocate(Region::Workspace, "scalars", accumulator_of(options.precision), {1});
}

Engine::MicroBatchBuffers Engine::allocate_batch() {
  const BatchSize& size = scratch_.size();
  const auto take = [&](Shape shape) {
    return arena_.allocate(Region::Workspace, "batch", DType::I32, shape);
  };
  MicroBatchBuffers slot{.ids = take({size.tokens()}), .targets = take({size.tokens()})};
  // Without document masks, all micro-batches have the same positions.
  if (options_.documents || batches_.empty())
    slot.positions = take({size.tokens()});
  else
    slot.positions = batches_.front().positions;
  if (options_.documents)
    slot.document_start = take({context_shard_.ranks * size.sequences, size.length});
  if (options_.weights)
    slot.weights = arena_.allocate(Region::Workspace, "batch", accumulator_of(options_.precision),
                                   {size.tokens()});
  if (options_.preference) {
    const std::int64_t most = PreferenceLoss::most_sequences(size.tokens(), context_shard_.ranks);
    slot.pair_ranges = take({most, 2});
    slot.pair_reference =
        arena_.allocate(Region::Workspace, "batch", accumulator_of(options_.precision), {most});
  }
  return slot;
}

void Engine::prepare() {
  sharding_.finish_weights();  // of an earlier step, if any
  scratch_.prepare();
  sharding_.zero_state();
  optimizer_.zero_state();
  upload_constants();
  set_balance_counts({});
}

void Engine::upload_constants() {
  const BatchSize& size = scratch_.size();
  upload_positions(context_shard_, size.sequences);
  if (!token_rows_) return;
  std::vector<std::int32_t> rows;
  for (std::int64_t sequence = 0; sequence < size.sequences; ++sequence)
    for (std::int64_t i = 0; i < size.length; ++i)
      rows.push_back(
          static_cast<std::int32_t>(sequence * context_shard_.length + context_shard_.position(i)));
  backend_->upload(token_rows_, rows.data());
}

void Engine::upload_positions(const ContextShard& shard, std::int64_t sequences) {
  std::vector<std::int32_t> positions;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence)
    for (std::int64_t i = 0; i < shard.local_length(); ++i)
      positions.push_back(static_cast<std::int32_t>(shard.position(i)));
  backend_->upload(batches_.front().positions.rows(0, std::ssize(positions)), positions.data());
}

void Engine::initialize(std::uint64_t seed) {
  prepare();
  const FreshParameters fresh(seed);
  write_weights(fresh, fresh);
}

void Engine::write_weights(const ParameterSource& weights, const ParameterSource& master,
                           const ParameterSource& average) {
  for (int bucket = 0; bucket < static_cast<int>(set_.buckets().size()); ++bucket) {
    if (sharding_.is_unrounded(bucket) && sharding_.trained(bucket))
      continue;  // they are master weights
    const Sharding::Range stored = sharding_.stored_weights(bucket);
    weights.fill(*backend_, sharding_.weights_at(bucket, stored), set_, stored.begin, stored.end);
  }
  const OptimizerState& state = optimizer_.state();
  for (const StateRange& run : state.segments()) {
    const auto [begin, end] = run.range;
    if (state.has_master()) master.fill(*backend_, state.master(run), set_, begin, end);
    if (state.has_ema()) average.fill(*backend_, state.ema(run), set_, begin, end);
  }
}

// ---- steps

namespace {

std::vector<double> to_doubles(Backend& backend, const Tensor& x) {
  std::vector<double> values;
  visit_float(x.dtype(), [&]<class T>() {
    std::vector<T> stored(static_cast<std::size_t>(x.elements()));
    backend.download(stored.data(), x);
    for (const T value : stored)
      values.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
  });
  return values;
}

// Reads scalars with one copy to the host.
void read_scalars(Backend& backend, const Tensor& x, std::span<double> values) {
  visit_float(x.dtype(), [&]<class T>() {
    std::array<T, kMostScalars> stored = {};
    backend.download(stored.data(), x);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(static_cast<Accumulator<T>>(stored[i]));
  });
}

double read_scalar(Backend& backend, const Tensor& x) {
  double value = 0;
  read_scalars(backend, x, std::span(&value, 1));
  return value;
}

}  // namespace

void Engine::sum_over_ranks(std::span<double> values) {
  Communicator& world = (*groups_)[GroupKind::World];
  world.wait(world.all_reduce(
      Tensor(values.data(), DType::F64, {static_cast<std::int64_t>(values.size())})));
}

// The keys of dropout differ between micro-batches.
bool Engine::is_repeatable(const MicroBatch& micro) const {
  const Grid& grid = groups_->grid;
  return micro.dropout == 0 && !micro.fp8_statistics && options_.model.lora.dropout == 0 &&
         grid.tp == 1 && grid.cp == 1 && grid.pp == 1 && grid.experts == 1 &&
         !options_.offload_inputs && !(micro.first && optimizer_.updates_late()) &&
         sharding_.has_no_transfers(micro.first, micro.last);
}

std::vector<float> Engine::fp8_statistics() {
  std::vector<float> numbers(static_cast<std::size_t>(fp8_statistics_.elements()));
  backend_->download(numbers.data(), fp8_statistics_);
  return numbers;
}

std::vector<double> Engine::expert_counts() { return to_doubles(*backend_, experts_.counts); }

std::vector<double> Engine::total_expert_counts() {
  std::vector<double> counts = expert_counts();
  sum_over_ranks(counts);
  return counts;
}

std::vector<double> Engine::total_dropped_choices() {
  if (!experts_.dropped) return {};
  std::vector<double> dropped = to_doubles(*backend_, experts_.dropped);
  sum_over_ranks(dropped);
  return dropped;
}

void Engine::balance_experts(std::span<const double> total_counts) {
  if (experts_.bias_steps) move_biases(total_counts);
  set_balance_counts(total_counts);
}

// From integers, so that all ranks have the same loads, rounded once.
void Engine::set_balance_counts(std::span<const double> total_counts) {
  if (!experts_.loads) return;
  const auto all = static_cast<std::size_t>(experts_.loads.elements()),
             experts = static_cast<std::size_t>(options_.model.experts->count);
  KINTSUGI_CHECK(total_counts.empty() || total_counts.size() == all, "counts of {} experts, not {}",
                 total_counts.size(), all);
  std::vector<double> loads(all, 1.0);
  for (std::size_t i = 0; i < total_counts.size(); ++i) {
    const auto counts = total_counts.subspan(i / experts * experts, experts);
    const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
    if (sum > 0) loads[i] = total_counts[i] * static_cast<double>(experts) / sum;
  }
  upload_numbers(experts_.loads, loads);
}

// Every rank computes the same from integers and updates the biases that it stores: no rank sends
// them.
void Engine::move_biases(std::span<const double> total_counts) {
  const auto experts = static_cast<std::size_t>(options_.model.experts->count);
  std::vector<double> steps;
  for (std::size_t layer = 0; layer < total_counts.size(); layer += experts) {
    const auto counts = total_counts.subspan(layer, experts);
    const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
    for (const double count : counts) {
      const double missing = sum - static_cast<double>(experts) * count;
      steps.push_back(missing == 0 ? 0 : std::copysign(options_.model.balance.bias_speed, missing));
    }
  }
  upload_numbers(experts_.bias_steps, steps);
  for (const Parameter& parameter : set_.parameters()) {
    if (parameter.group != ParameterGroup::Router || !parameter.wide ||
        is_frozen(options_.model, parameter))
      continue;
    const Sharding::Range stored = sharding_.stored_weights(parameter.bucket);
    const std::int64_t begin = std::max(stored.begin, parameter.offset),
                       end = std::min(stored.end, parameter.offset + parameter.shape.elements());
    if (begin >= end) continue;
    const int layer = set_.buckets()[static_cast<std::size_t>(parameter.bucket)].layer;
    backend_->add(sharding_.weights_at(parameter.bucket, {begin, end}),
                  experts_.bias_steps.select(0, layer).rows(begin - parameter.offset, end - begin));
  }
}

double Engine::targets_of(const TokenBatch& batch) const {
  if (!groups_->counts_sequences()) return 0;
  if (options_.preference) return static_cast<double>(batch.sequences.size() / 2);
  double sum = 0;
  for (std::size_t i = 0; i < batch.targets.size(); ++i)
    if (batch.targets[i] >= 0) sum += batch.weights.empty() ? 1.0 : batch.weights[i];
  return sum;
}

void Engine::begin_step(const TokenBatch& batch, const StepSettings& settings) {
  KINTSUGI_CHECK(settings.targets >= 0, "StepSettings::targets is not set for step {}",
                 settings.step);
  // Gradients are scaled by the number of all tokens first, with or without a loss, so that the
  // micro-batches of every step make identical calls (CUDA graphs).
  const double tokens = static_cast<double>(batch.targets.size()) * groups_->grid.dp;
  unscale_ = tokens / loss_divisor(settings.targets) / settings.loss_scale;
  const int micro_batches = micro_batches_of(batch);
  const auto load = [&](int number) {
    MicroBatch micro = upload(batch, number);
    micro.first = number == 0;
    micro.last = number == micro_batches - 1;
    micro.training = true;
    micro.gradient_scale = settings.loss_scale / tokens;
    micro.overwrites = sharding_.overwrites(micro.first);
    micro.first_token += settings.first_sequence * context_shard_.length;
    micro.dropout = settings.dropout;
    micro.expert_counts = experts_.counts;
    micro.expert_loads = experts_.loads;
    micro.dropped_choices = experts_.dropped;
    if (settings.fp8_statistics && micro.first) micro.fp8_statistics = fp8_statistics_;
    micro.repeatable = is_repeatable(micro);
    micro.dropout_seed =
        derive_key(settings.seed, 0xD509, static_cast<std::uint64_t>(settings.step));
    return micro;
  };
  backend_->fill(loss_sums_, 0.0);
  if (const Tensor sums = scratch_.context().sums.values) backend_->fill(sums, 0.0);
  if (settings.fp8_statistics) backend_->fill(fp8_statistics_, 0.0);
  for (const Tensor& counts : {experts_.counts, experts_.dropped})
    if (counts) backend_->fill(counts, 0.0);
  pipeline_.run({.micro_batches = micro_batches, .loss_sum = loss_sums_},
                std::cref(load));  // by reference: a copy would allocate memory
  {
    const Phase phase(*backend_, [] { return "sum gradients"; });
    sharding_.finish_gradients();
    copies_.run();
  }
  if (const auto call = std::exchange(before_update_, {})) call();
  const Phase phase(*backend_, [] { return "optimizer"; });
  limited_ = settings.limits.any();
  KINTSUGI_CHECK(!limited_ || loss_total_, "limits without EngineOptions::skip_step");
  if (!limited_) return optimizer_.step(settings.step, settings.lr, unscale_);
  sum_losses_on_device();
  StepLimits limits = settings.limits;
  limits.loss *= loss_divisor(settings.targets);  // of the sum
  optimizer_.step(settings.step, settings.lr, unscale_, limits, loss_total_);
}

void Engine::sum_losses_on_device() {
  backend_->fill(loss_total_, 0.0);
  if (counts_sums()) backend_->add(loss_total_, loss_sums_.rows(0, 1));
  // The ranks of one copy of the model, then the copies.
  const Grid& grid = groups_->grid;
  const GroupKind copies =
      grid.copy() > grid.shard() ? GroupKind::ExpertsReplica : GroupKind::Replica;
  for (const GroupKind kind : {GroupKind::Copy, copies})
    if (Communicator& group = (*groups_)[kind]; group.size() > 1)
      group.wait(group.all_reduce(loss_total_));
}

StepResult Engine::step(const TokenBatch& batch, StepSettings settings) {
  settings.targets = targets_of(batch);
  sum_over_ranks(std::span(&settings.targets, 1));
  begin_step(batch, settings);
  const LocalStepResult local = finish_step();
  sum_over_ranks(local.sums);
  const double targets = loss_divisor(settings.targets);
  StepResult result{.loss = local.sums.front() / targets,
                    .gradient_norm = local.gradient_norm,
                    .outlier = local.outlier,
                    .scalars = scalars_.values(local.sums, targets)};
  if (balances_experts() && !result.skipped()) balance_experts(total_expert_counts());
  return result;
}

LossSums Engine::read_loss_sums() {
  std::ranges::fill(host_sums_, 0.0);
  const auto of_losses = static_cast<std::size_t>(loss_sums_.elements());
  if (counts_sums()) read_scalars(*backend_, loss_sums_, std::span(host_sums_).first(of_losses));
  return host_sums_;
}

LocalStepResult Engine::finish_step() {
  const LossSums sums = read_loss_sums();
  if (const Tensor of_layers = scratch_.context().sums.values)
    read_scalars(*backend_, of_layers, sums.last(static_cast<std::size_t>(of_layers.elements())));
  const double squared_norm = read_scalar(*backend_, optimizer_.squared_norm());
  LocalStepResult result{.sums = sums, .gradient_norm = std::sqrt(squared_norm) * unscale_};
  if (limited_ && std::isfinite(result.gradient_norm))
    result.outlier = !std::isfinite(read_scalar(*backend_, optimizer_.scale()));
  return result;
}

LossSums Engine::evaluate(const TokenBatch& batch) {
  backend_->fill(loss_sums_, 0.0);
  pipeline_.evaluate({.micro_batches = micro_batches_of(batch), .loss_sum = loss_sums_},
                     [&](int number) { return upload(batch, number); });
  return read_loss_sums();
}

void Engine::for_each_target(const TokenBatch& batch, int number, const auto& use) const {
  const ContextShard shard = shard_of(batch);
  const std::int64_t length = shard.length, own = shard.local_length(),
                     micro = micro_sequences(length), first = number * micro,
                     count = std::min(micro, sequences_of(batch) - first);
  for (std::int64_t local = 0; local < count * own; ++local) {
    const auto token =
        static_cast<std::size_t>((first + local / own) * length + shard.position(local % own));
    if (batch.targets[token] >= 0) use(static_cast<std::size_t>(local), token);
  }
}

LossSums Engine::classify(const TokenBatch& batch, const UseLogits& use) {
  KINTSUGI_CHECK(options_.model.is_classifier(), "a language model has no labels");
  const auto use_logits = [&](const Tensor&, const Tensor&, int number) {
    if (!counts_losses()) return;
    // All tokens of the micro-batch. Their rows have padding between them.
    const Tensor& logits = pipeline_.head().logits_memory();
    const auto labels = static_cast<std::size_t>(logits.extent(1)),
               stride = static_cast<std::size_t>(logits.stride(0));
    const std::vector<double> all = to_doubles(
        *backend_, Tensor(logits.data(), logits.dtype(), {logits.extent(0) * logits.stride(0)}));
    for_each_target(batch, number, [&](std::size_t local, std::size_t token) {
      use(token, std::span(all).subspan(local * stride, labels));
    });
  };
  backend_->fill(loss_sums_, 0.0);
  pipeline_.evaluate(
      {.micro_batches = micro_batches_of(batch), .loss_sum = loss_sums_},
      [&](int number) { return upload(batch, number); }, use_logits);
  return read_loss_sums();
}

void Engine::evaluate_plain(const TokenBatch& batch, bool predicts,
                            const Pipeline::UseLosses& use) {
  const ContextShard shard = shard_of(batch);
  const std::int64_t length = shard.length;
  const bool shorter = length < context_shard_.length;
  KINTSUGI_CHECK(!shorter || (shard.ranks == 1 && !options_.documents),
                 "sequences of {} tokens in batches for {}", length, context_shard_.length);
  const auto load = [&](int number) {
    MicroBatch micro = upload(batch, number, true);
    micro.predicts = predicts;
    return micro;
  };
  if (shorter) upload_positions(shard, micro_sequences(length));
  backend_->fill(loss_sums_, 0.0);
  pipeline_.evaluate({.micro_batches = micro_batches_of(batch), .loss_sum = loss_sums_}, load, use);
  if (shorter) upload_positions(context_shard_, scratch_.size().sequences);
}

void Engine::score(const TokenBatch& batch, const UseLoss& use) {
  evaluate_plain(batch, false, [&](Tensor device_losses, Tensor device_smallest, int number) {
    if (!counts_losses()) return;
    const std::vector<double> losses = to_doubles(*backend_, device_losses),
                              smallest = to_doubles(*backend_, device_smallest);
    for_each_target(batch, number, [&](std::size_t local, std::size_t token) {
      use(token, losses[local], smallest[local]);
    });
  });
}

void Engine::predict(const TokenBatch& batch, const UseToken& use) {
  KINTSUGI_CHECK(!options_.model.is_classifier(), "a classifier predicts no tokens");
  evaluate_plain(batch, true, [&](const Tensor& losses, const Tensor&, int number) {
    const LikelyTokens likely = scratch_.likely_tokens(losses.elements());
    const std::vector<double> logits = to_doubles(*backend_, likely.logits),
                              log_sums = to_doubles(*backend_, likely.log_sum);
    std::vector<std::int32_t> ids(logits.size());
    backend_->download(ids.data(), likely.ids);
    for_each_target(batch, number, [&](std::size_t local, std::size_t token) {
      const bool finite = std::isfinite(log_sums[local]);
      use(token, finite ? logits[local] : INFINITY, ids[local]);
    });
  });
}

}  // namespace kintsugi
