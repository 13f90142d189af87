#include "optim/optimizer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

#include "core/log.h"

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
                     const OptimizerSettings& settings, const StateOffload& offload)
    : backend_(&backend),
      sharding_(&sharding),
      clip_(settings.clip),
      rules_(update_rules(settings)),
      place_(offload.on ? offload.update : UpdatePlace::Device),
      state_(arena, sharding, rules_, offload.on ? Side::Host : Side::Device) {
  // Nothing to choose from where the host does not compute.
  if (place_ == UpdatePlace::Auto && backend.host() == nullptr) place_ = UpdatePlace::Device;
  const DType precision = sharding.store().dtype(), wide = accumulator_of(precision);
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
  const std::int64_t most =
      in_pieces ? std::min(state_.elements(), offload.piece) : state_.elements();
  pieces_ = plan_updates(sharding, state_, most);
  if (!in_pieces) return;
  if (place_ != UpdatePlace::Host) {
    find_pieces_of_buckets();
    streamed_.emplace(backend, arena, state_, pieces_, precision, offload, pieces_ahead(most));
    sharding.on_reading([this](int bucket) { update_until(bucket); });
  }
  if (place_ != UpdatePlace::Device) on_host_.emplace(backend, arena, pieces_, precision, offload);
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
  const std::vector<Bucket>& buckets = sharding_->set().buckets();
  std::vector<std::int64_t> pieces(buckets.size(), 0);
  std::int64_t layer = 2;
  for (const StateRun& run : state_.runs()) {
    const auto bucket = static_cast<std::size_t>(run.bucket);
    pieces[bucket] += (run.elements + most - 1) / most;
    if (buckets[bucket].role == Bucket::Role::Block) layer = std::max(layer, pieces[bucket]);
  }
  return static_cast<std::size_t>(layer);
}

void Optimizer::find_pieces_of_buckets() {
  std::size_t piece = 0;
  pieces_until_.resize(sharding_->set().buckets().size());
  for (const StateRun& run : state_.runs()) {
    while (piece < pieces_.size() && pieces_[piece].first < run.at + run.elements) ++piece;
    pieces_until_[static_cast<std::size_t>(run.bucket)] = piece;
  }
}

void Optimizer::update_until(int bucket) {
  const auto last = static_cast<std::size_t>(bucket);
  if (last >= pieces_until_.size()) return streamed_->finish();
  streamed_->run_until(pieces_until_[last]);
}

void Optimizer::update(UpdatePlace place, const UpdateStep& step) {
  if (place == UpdatePlace::Host) return on_host_->run(step);
  if (streamed_) return streamed_->start(step);
  for (const UpdatePiece& piece : pieces_)
    for (const UpdateRange& range : piece.ranges) range.update(*backend_, step);
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
  backend_->clip_scale(scale_, squared_norm_, clip_, unscale);
  const UpdateStep update{.step = step, .lr = lr, .scale = scale_};
  if (place_ == UpdatePlace::Auto)
    try_update(update);
  else
    this->update(place_, update);
  sharding_->weights_changed();
}

}  // namespace kintsugi
