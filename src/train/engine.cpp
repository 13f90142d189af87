#include "train/engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "core/error.h"

namespace kintsugi {

Engine::Engine(Backend& backend, Allocator& memory, const EngineOptions& options)
    : Engine(backend, memory, options, DataGroups{}) {}

Engine::Engine(Backend& backend, Allocator& memory, const EngineOptions& options,
               const DataGroups& groups)
    : backend_(&backend),
      options_(options),
      arena_(memory),
      set_(options.model),
      alone_("alone", &backend),
      groups_(groups.host != nullptr ? groups : DataGroups{&alone_, &alone_, &alone_}),
      sharding_(backend, arena_, set_, groups_,
                {.zero = options.zero,
                 .precision = options.precision,
                 .reduce_in_bf16 = options.reduce_in_bf16,
                 .tied = options.model.tied}),
      stage_(backend, arena_, sharding_.store(), options.model, options.stage, &sharding_),
      optimizer_(backend, arena_, sharding_, options.adamw) {
  const std::int64_t tokens = options.stage.sequences * options.stage.length;
  ids_ = arena_.allocate(Region::Workspace, "batch", DType::I32, {tokens});
  targets_ = arena_.allocate(Region::Workspace, "batch", DType::I32, {tokens});
  positions_ = arena_.allocate(Region::Workspace, "batch", DType::I32, {tokens});
  if (options.documents)
    document_start_ = arena_.allocate(Region::Workspace, "batch", DType::I32,
                                      {options.stage.sequences, options.stage.length});
  loss_sum_ = arena_.allocate(Region::Workspace, "scalars", accumulator_of(options.precision), {1});
}

void Engine::prepare() {
  stage_.prepare();
  sharding_.zero_state();
  optimizer_.zero_state();
  std::vector<std::int32_t> positions(static_cast<std::size_t>(positions_.elements()));
  for (std::size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(options_.stage.length));
  backend_->upload(positions_, positions.data());
}

void Engine::initialize(std::uint64_t seed) {
  prepare();
  const FreshParameters fresh(seed);
  write_weights(fresh, fresh);
}

void Engine::write_weights(const ParameterSource& weights, const ParameterSource& master) {
  for (int bucket = 0; bucket < static_cast<int>(set_.buckets().size()); ++bucket) {
    const Sharding::Range stored = sharding_.stored_weights(bucket),
                          owned = sharding_.owned(bucket);
    fill_from(weights, *backend_, sharding_.weights_at(bucket, stored), set_, stored.begin,
              stored.end);
    if (optimizer_.has_master())
      fill_from(master, *backend_, optimizer_.master(bucket), set_, owned.begin, owned.end);
  }
}

MicroBatch Engine::upload(const TokenBatch& batch, std::int64_t first, std::int64_t count) {
  const std::int64_t length = options_.stage.length;
  MicroBatch micro{.sequences = count,
                   .length = length,
                   .ids = ids_.rows(0, count * length),
                   .targets = targets_.rows(0, count * length),
                   .positions = positions_.rows(0, count * length),
                   .first_token = first * length};
  backend_->upload(micro.ids, batch.ids.data() + first * length);
  backend_->upload(micro.targets, batch.targets.data() + first * length);
  if (!options_.documents) return micro;
  KINTSUGI_CHECK(
      batch.positions.size() == batch.ids.size() && batch.document_start.size() == batch.ids.size(),
      "{} tokens with {} positions and {} document starts", batch.ids.size(),
      batch.positions.size(), batch.document_start.size());
  micro.document_start = document_start_.rows(0, count);
  backend_->upload(micro.positions, batch.positions.data() + first * length);
  backend_->upload(micro.document_start, batch.document_start.data() + first * length);
  return micro;
}

namespace {

double read_scalar(Backend& backend, const Tensor& x) {
  double value = 0;
  visit_float(x.dtype(), [&]<class T>() {
    T stored;
    backend.download(&stored, x);
    value = static_cast<double>(static_cast<Accumulator<T>>(stored));
  });
  return value;
}

}  // namespace

double Engine::summed_over_ranks(double value) {
  shared_[0] = value;
  const Tensor host(shared_.data(), DType::F64, {1});
  groups_.host->wait(groups_.host->all_reduce(host));
  return shared_[0];
}

void Engine::begin_step(const TokenBatch& batch, const StepSettings& settings) {
  const std::int64_t length = options_.stage.length, micro = options_.stage.sequences;
  const auto sequences = static_cast<std::int64_t>(batch.ids.size()) / length;
  const auto counted = std::count_if(batch.targets.begin(), batch.targets.end(),
                                     [](std::int32_t target) { return target >= 0; });
  counted_ = std::max(summed_over_ranks(static_cast<double>(counted)), 1.0);
  // Scaled by all tokens first, counted or not, so that passes of every step are the same calls.
  const double tokens = static_cast<double>(batch.targets.size()) * groups_.ranks();
  const double gradient_scale = settings.loss_scale / tokens;
  unscale_ = tokens / counted_ / settings.loss_scale;
  backend_->fill(loss_sum_, 0.0);
  for (std::int64_t first = 0; first < sequences; first += micro) {
    MicroBatch part = upload(batch, first, std::min(micro, sequences - first));
    const bool last = first + micro >= sequences;
    part.first = sharding_.begin_micro_batch(first == 0, last);
    part.first_token += settings.first_sequence * length;
    part.dropout = settings.dropout;
    part.dropout_seed =
        derive_key(settings.seed, 0xD509, static_cast<std::uint64_t>(settings.step));
    const auto pass = [&] { stage_.forward_backward(part, gradient_scale, loss_sum_); };
    // Dropout's keys differ from pass to pass; without it, passes of the same size are the same
    // calls, as long as no other rank takes part.
    if (settings.dropout > 0 || groups_.ranks() > 1)
      pass();
    else
      backend_->replay(derive_key(static_cast<std::uint64_t>(part.sequences), part.first,
                                  std::bit_cast<std::uint64_t>(gradient_scale)),
                       std::ref(pass));
  }
  optimizer_.step(settings.step, settings.lr, unscale_);
}

StepResult Engine::finish_step() {
  return {.loss = summed_over_ranks(read_scalar(*backend_, loss_sum_)) / counted_,
          .gradient_norm = std::sqrt(read_scalar(*backend_, optimizer_.squared_norm())) * unscale_};
}

double Engine::evaluate(const TokenBatch& batch) {
  const std::int64_t length = options_.stage.length, micro = options_.stage.sequences;
  const auto sequences = static_cast<std::int64_t>(batch.ids.size()) / length;
  backend_->fill(loss_sum_, 0.0);
  for (std::int64_t first = 0; first < sequences; first += micro)
    stage_.evaluate(upload(batch, first, std::min(micro, sequences - first)), loss_sum_);
  return read_scalar(*backend_, loss_sum_);
}

}  // namespace kintsugi
