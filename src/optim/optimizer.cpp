#include "optim/optimizer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

#include "core/log.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

// Each place once to warm up and once to be timed.
constexpr std::array<UpdatePlace, 4> kTrial = {UpdatePlace::Device, UpdatePlace::Host,
                                               UpdatePlace::Device, UpdatePlace::Host};

}  // namespace

std::string_view to_string(UpdatePlace place) {
  switch (place) {
    case UpdatePlace::Auto:
      return "auto";
    case UpdatePlace::Device:
      return "device";
    case UpdatePlace::Host:
      return "host";
  }
  return "?";
}

Optimizer::Optimizer(Backend& backend, Arena& arena, Sharding& sharding,
                     const AdamWSettings& settings, const StateOffload& offload)
    : backend_(&backend),
      sharding_(&sharding),
      settings_(settings),
      place_(offload.on ? offload.update : UpdatePlace::Device) {
  // Nothing to choose from where the host does not compute.
  if (place_ == UpdatePlace::Auto && backend.host() == nullptr) place_ = UpdatePlace::Device;
  const DType precision = sharding.store().dtype(), wide = accumulator_of(precision);
  std::int64_t n = 0;
  for (int bucket = 0; bucket < static_cast<int>(sharding.set().buckets().size()); ++bucket) {
    offsets_.push_back(n);
    n += sharding.part_elements(bucket);
  }
  const Side side = offload.on ? Side::Host : Side::Device;
  if (wide != precision)
    state_.master = arena.allocate(Region::Optimizer, "master weights", wide, {n}, side);
  const DType moments = wide == DType::F64 ? wide : settings.moments;
  state_.moment1 = arena.allocate(Region::Optimizer, "first moments", moments, {n}, side);
  state_.moment2 = arena.allocate(Region::Optimizer, "second moments", moments, {n}, side);
  squared_norm_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
  scale_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
  const bool in_pieces = offload.on || offload.gradients;
  for (std::size_t i = 0; i < sharding.data_groups().size(); ++i) {
    const DataGroups& data = sharding.data_groups()[i];
    const bool usual = data == DataGroups{};
    norms_.push_back(
        {usual ? nullptr : &sharding.groups()[data.shard],
         usual ? squared_norm_ : arena.allocate(Region::Optimizer, "scalars", wide, {1}),
         offload.gradients ? std::vector<Tensor>() : sharding.counted_gradient_pieces(i)});
  }
  const std::int64_t most = std::max<std::int64_t>(1, in_pieces ? std::min(n, offload.piece) : n);
  pieces_ = plan_updates(sharding, offsets_, n, most);
  if (!in_pieces) return;
  if (place_ != UpdatePlace::Host) {
    streamed_.emplace(backend, arena, state_, pieces_, most, offload, pieces_ahead(most));
    sharding.on_reading([this](int bucket) { update_until(bucket); });
  }
  if (place_ != UpdatePlace::Device)
    on_host_.emplace(backend, arena, state_, pieces_, most, precision, offload);
}

Optimizer::~Optimizer() {
  if (!streamed_) return;
  sharding_->on_reading({});
  if (std::uncaught_exceptions() > 0) return;
  try {
    streamed_->finish();  // what is under way reads and writes memory that goes next
  } catch (const std::exception& error) {
    log_warning("the last update was not finished: {}", error.what());
  }
}

// Those of a layer: they travel while the one before it computes.
std::size_t Optimizer::pieces_ahead(std::int64_t most) const {
  std::int64_t layer = 0;
  const std::vector<Bucket>& buckets = sharding_->set().buckets();
  for (std::size_t b = 0; b < buckets.size(); ++b)
    if (buckets[b].role == Bucket::Role::Block)
      layer = std::max(layer, sharding_->part_elements(static_cast<int>(b)));
  return std::max<std::size_t>(2, static_cast<std::size_t>((layer + most - 1) / most));
}

void Optimizer::update_until(int bucket) {
  const auto next = static_cast<std::size_t>(bucket) + 1;
  if (next > offsets_.size()) return streamed_->finish();
  if (next == offsets_.size()) return streamed_->run_until(pieces_.size());
  const std::int64_t most = pieces_.front().count;
  streamed_->run_until(static_cast<std::size_t>((offsets_[next] + most - 1) / most));
}

Tensor Optimizer::owned(const Tensor& flat, int bucket) const {
  return flat.rows(offsets_[static_cast<std::size_t>(bucket)], sharding_->owned(bucket).size());
}

Tensor Optimizer::master(int bucket) const {
  return state_.master ? owned(state_.master, bucket) : sharding_->owned_weights(bucket);
}

void Optimizer::zero_state() {
  for (const Tensor& x : {state_.master, state_.moment1, state_.moment2})
    if (x) backend_->fill(x, 0.0);
}

void Optimizer::update_in_place(const UpdateStep& step) {
  for (const UpdatePiece& piece : pieces_)
    for (const UpdateRange& range : piece.ranges) {
      const auto part = [&](const Tensor& x) { return x.rows(range.at, range.size()); };
      backend_->adamw(range.weight, state_.master ? part(state_.master) : range.weight,
                      part(state_.moment1), part(state_.moment2), range.gradient, step.scale,
                      step.of(range));
    }
}

void Optimizer::update(UpdatePlace place, const UpdateStep& step) {
  if (place == UpdatePlace::Host) return on_host_->run(step);
  if (streamed_) return streamed_->start(step);
  update_in_place(step);
}

void Optimizer::try_update(const UpdateStep& step) {
  const auto trial = static_cast<std::size_t>(tried_);
  const UpdatePlace place = kTrial[trial];
  backend_->synchronize();
  const auto start = std::chrono::steady_clock::now();
  if (place == UpdatePlace::Device) streamed_->begin();
  update(place, step);
  if (place == UpdatePlace::Device) streamed_->finish();
  backend_->synchronize();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  double scale = 0;
  visit_float(scale_.dtype(), [&]<class T>() {
    T stored;
    backend_->download(&stored, scale_);
    scale = static_cast<double>(static_cast<Accumulator<T>>(stored));
  });
  if (!std::isfinite(scale)) return;  // a step without an update tells nothing
  seconds_[trial % seconds_.size()] = seconds;
  if (++tried_ < static_cast<int>(kTrial.size())) return;
  // Copies of a weight must be updated by the same arithmetic everywhere.
  Communicator& world = sharding_->groups()[GroupKind::World];
  world.wait(world.all_reduce(
      Tensor(seconds_.data(), DType::F64, {static_cast<std::int64_t>(seconds_.size())}),
      ReduceOp::Max));
  place_ = seconds_[1] < seconds_[0] ? UpdatePlace::Host : UpdatePlace::Device;
  if (sharding_->groups().is_first())
    log_info(
        "offload: updates take {:.4f} s on the device and {:.4f} s on the host, so the {} does "
        "them from now on",
        seconds_[0], seconds_[1], to_string(place_));
}

// Gradients that went to host memory were counted on the way.
void Optimizer::sum_squares() {
  const Groups& groups = sharding_->groups();
  GradientOffload* const offload = sharding_->offload();
  backend_->fill(squared_norm_, 0.0);
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    const auto& [shard, squares, pieces] = norms_[i];
    if (shard != nullptr) backend_->fill(squares, 0.0);
    for (const Tensor& piece : pieces) backend_->squared_norm(squares, piece);
    if (offload != nullptr) {
      backend_->add(squares, offload->squared_norm(i));
      backend_->fill(offload->squared_norm(i), 0.0);
    }
    if (shard == nullptr) continue;
    if (shard->size() > 1) shard->wait(shard->all_reduce(squares));
    // One rank of each stage brings it into the sum of the whole model.
    if (groups[GroupKind::Shard].rank() == 0) backend_->add(squared_norm_, squares);
  }
  Communicator& copy = groups[GroupKind::Copy];
  if (copy.size() > 1) copy.wait(copy.all_reduce(squared_norm_));
}

void Optimizer::step(std::int64_t step, double lr, double unscale) {
  if (streamed_) streamed_->finish();
  if (streamed_ && place_ == UpdatePlace::Device) streamed_->begin();
  sum_squares();
  backend_->clip_scale(scale_, squared_norm_, settings_.clip, unscale);
  UpdateStep update{.options = {.lr = lr,
                                .beta1 = settings_.beta1,
                                .beta2 = settings_.beta2,
                                .eps = settings_.eps,
                                .weight_decay = 0,
                                .step = step},
                    .weight_decay = settings_.weight_decay,
                    .scale = scale_};
  if (settings_.stochastic_rounding)
    update.options.rounding_key =
        derive_key(settings_.seed, 0x50FF, static_cast<std::uint64_t>(step)) | 1;
  if (place_ == UpdatePlace::Auto)
    try_update(update);
  else
    this->update(place_, update);
  sharding_->weights_changed();
}

}  // namespace kintsugi
