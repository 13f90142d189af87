#include "train/engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "core/error.h"
#include "model/initialize.h"

namespace kintsugi {

Engine::Engine(Backend& backend, Allocator& memory, const EngineOptions& options)
    : backend_(&backend),
      options_(options),
      arena_(memory),
      set_(options.model),
      store_(set_, arena_, options.precision, true),
      stage_(backend, arena_, store_, options.model, options.stage),
      optimizer_(backend, arena_, store_, options.adamw) {
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
  optimizer_.zero_all_gradients();
  std::vector<std::int32_t> positions(static_cast<std::size_t>(positions_.elements()));
  for (std::size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(options_.stage.length));
  backend_->upload(positions_, positions.data());
}

void Engine::initialize(std::uint64_t seed) {
  prepare();
  initialize_parameters(*backend_, store_, optimizer_.master(), seed);
  optimizer_.zero_state();
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

void Engine::begin_step(const TokenBatch& batch, const StepSettings& settings) {
  const std::int64_t length = options_.stage.length, micro = options_.stage.sequences;
  const auto sequences = static_cast<std::int64_t>(batch.ids.size()) / length;
  const auto counted = std::count_if(batch.targets.begin(), batch.targets.end(),
                                     [](std::int32_t target) { return target >= 0; });
  counted_ = static_cast<double>(std::max<std::ptrdiff_t>(counted, 1));
  // Scaled by all tokens first, counted or not, so that passes of every step are the same calls.
  const auto tokens = static_cast<double>(batch.targets.size());
  const double gradient_scale = settings.loss_scale / tokens;
  unscale_ = tokens / counted_ / settings.loss_scale;
  optimizer_.zero_added_gradients();
  backend_->fill(loss_sum_, 0.0);
  for (std::int64_t first = 0; first < sequences; first += micro) {
    MicroBatch part = upload(batch, first, std::min(micro, sequences - first));
    part.first = first == 0;
    part.dropout = settings.dropout;
    part.dropout_seed =
        derive_key(settings.seed, 0xD509, static_cast<std::uint64_t>(settings.step));
    const auto pass = [&] { stage_.forward_backward(part, gradient_scale, loss_sum_); };
    // Dropout's keys differ from pass to pass; without it, passes of the same size are the same
    // calls.
    if (settings.dropout > 0)
      pass();
    else
      backend_->replay(derive_key(static_cast<std::uint64_t>(part.sequences), part.first,
                                  std::bit_cast<std::uint64_t>(gradient_scale)),
                       std::ref(pass));
  }
  optimizer_.step(settings.step, settings.lr, unscale_);
}

StepResult Engine::finish_step() {
  return {.loss = read_scalar(*backend_, loss_sum_) / counted_,
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
