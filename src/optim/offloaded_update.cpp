#include "optim/offloaded_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kintsugi {

// ---- on the device

StreamedUpdate::StreamedUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
                               const std::vector<UpdatePiece>& pieces, std::int64_t most,
                               const StateOffload& offload, std::size_t ahead)
    : backend_(&backend),
      offload_(offload),
      state_{state.master, state.moment1, state.moment2},
      pieces_(&pieces),
      ahead_(ahead),
      slots_(std::min(ahead + kLeaving, pieces.size())),
      next_(pieces.size()) {
  const DType wide = accumulator_of(state.master ? state.master.dtype() : state.moment1.dtype());
  std::size_t ranges = 0;
  for (const UpdatePiece& piece : pieces) ranges = std::max(ranges, piece.ranges.size());
  for (Slot& slot : slots_) {
    for (std::size_t i = 0; offload.on && i < state_.size(); ++i)
      if (state_[i])
        slot.here[i] =
            arena.allocate(Region::Optimizer, "state on its way", state_[i].dtype(), {most});
    if (!offload.gradients) continue;
    slot.gradients = arena.allocate(Region::Gradients, "gradients on their way", wide, {most});
    slot.gradients_coming.reserve(ranges);
  }
}

void StreamedUpdate::fetch(std::size_t piece) {
  const auto& [first, count, ranges] = (*pieces_)[piece];
  Slot& to = slot(piece);
  for (std::size_t i = 0; offload_.on && i < state_.size(); ++i) {
    if (!state_[i]) continue;
    backend_->wait(std::exchange(to.going[i], {}));
    to.coming[i] = backend_->to_device(to.here[i].rows(0, count), state_[i].rows(first, count));
  }
  if (!offload_.gradients) return;
  for (const UpdateRange& range : ranges)
    to.gradients_coming.push_back(
        backend_->to_device(to.gradients.rows(range.at - first, range.size()), range.gradient));
}

void StreamedUpdate::begin() {
  for (std::size_t piece = 0; piece < std::min(ahead_, pieces_->size()); ++piece) fetch(piece);
}

void StreamedUpdate::update(std::size_t piece) {
  const auto& [first, count, ranges] = (*pieces_)[piece];
  Slot& with = slot(piece);
  for (Backend::Transfer& coming : with.coming) backend_->wait(std::exchange(coming, {}));
  for (const Backend::Transfer coming : with.gradients_coming) backend_->wait(coming);
  with.gradients_coming.clear();
  for (const UpdateRange& range : ranges) {
    const auto part = [&, begin = range.at - first](std::size_t i) {
      return offload_.on ? with.here[i].rows(begin, range.size())
                         : state_[i].rows(range.at, range.size());
    };
    const Tensor gradient =
        offload_.gradients ? with.gradients.rows(range.at - first, range.size()) : range.gradient;
    backend_->adamw(range.weight, state_[0] ? part(0) : range.weight, part(1), part(2), gradient,
                    step_.scale, step_.of(range));
  }
  for (std::size_t i = 0; offload_.on && i < state_.size(); ++i)
    if (state_[i])
      with.going[i] = backend_->to_host(state_[i].rows(first, count), with.here[i].rows(0, count));
}

void StreamedUpdate::start(const UpdateStep& step) {
  KINTSUGI_CHECK(next_ == pieces_->size(), "an update starts before the last one is over");
  step_ = step;
  next_ = 0;
}

void StreamedUpdate::run_until(std::size_t piece) {
  for (; next_ < std::min(piece, pieces_->size()); ++next_) {
    if (next_ + ahead_ < pieces_->size()) fetch(next_ + ahead_);
    update(next_);
  }
}

void StreamedUpdate::finish() {
  run_until(pieces_->size());
  for (Slot& slot : slots_)
    for (Backend::Transfer& going : slot.going) backend_->wait(std::exchange(going, {}));
}

// ---- on the host

HostUpdate::HostUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
                       const std::vector<UpdatePiece>& pieces, std::int64_t most, DType precision,
                       const StateOffload& offload)
    : backend_(&backend),
      host_(backend.host()),
      gradients_here_(offload.gradients),
      state_(state),
      pieces_(&pieces),
      slots_(std::min(kSlots, pieces.size())) {
  KINTSUGI_CHECK(host_ != nullptr, "no backend for the host's side of an update");
  const DType wide = accumulator_of(precision);
  std::size_t ranges = 0;
  for (const UpdatePiece& piece : pieces) ranges = std::max(ranges, piece.ranges.size());
  for (Slot& slot : slots_) {
    if (!gradients_here_)
      slot.gradients =
          arena.allocate(Region::Gradients, "gradients on their way", wide, {most}, Side::Host);
    slot.weights =
        arena.allocate(Region::Weights, "weights on their way", precision, {most}, Side::Host);
    slot.coming.reserve(2 * ranges);
    slot.going.reserve(ranges);
  }
  scale_ = arena.allocate(Region::Optimizer, "scalars", wide, {1}, Side::Host);
}

void HostUpdate::fetch(std::size_t piece) {
  Slot& to = slot(piece);
  for (const Backend::Transfer going : to.going) backend_->finish(going);
  to.going.clear();
  for (const UpdateRange& range : (*pieces_)[piece].ranges) {
    const std::int64_t begin = range.at - (*pieces_)[piece].first;
    if (!gradients_here_)
      to.coming.push_back(
          backend_->to_host(to.gradients.rows(begin, range.size()), range.gradient));
    if (!state_.master)
      to.coming.push_back(backend_->to_host(to.weights.rows(begin, range.size()), range.weight));
  }
}

void HostUpdate::update(std::size_t piece, const UpdateStep& step) {
  Slot& with = slot(piece);
  for (const Backend::Transfer coming : with.coming) backend_->finish(coming);
  with.coming.clear();
  for (const UpdateRange& range : (*pieces_)[piece].ranges) {
    const std::int64_t begin = range.at - (*pieces_)[piece].first, count = range.size();
    const Tensor weights = with.weights.rows(begin, count);
    host_->adamw(weights, state_.master ? state_.master.rows(range.at, count) : weights,
                 state_.moment1.rows(range.at, count), state_.moment2.rows(range.at, count),
                 gradients_here_ ? range.gradient : with.gradients.rows(begin, count), scale_,
                 step.of(range));
    with.going.push_back(backend_->to_device(range.weight, weights));
  }
}

void HostUpdate::run(const UpdateStep& step) {
  // Behind the gradients, if those are offloaded: copies of a direction come one after the other.
  backend_->finish(backend_->to_host(scale_, step.scale));
  bool skipped = false;
  visit_float(scale_.dtype(), [&]<class T>() {
    skipped = !std::isfinite(static_cast<double>(static_cast<Accumulator<T>>(*scale_.as<T>())));
  });
  if (skipped) return;  // and so no stale weights go back
  const std::size_t ahead = slots_.size() > 1 ? slots_.size() - 1 : 1;
  for (std::size_t piece = 0; piece < std::min(ahead, pieces_->size()); ++piece) fetch(piece);
  for (std::size_t piece = 0; piece < pieces_->size(); ++piece) {
    update(piece, step);
    if (piece + ahead < pieces_->size()) fetch(piece + ahead);
  }
  for (Slot& slot : slots_) {
    for (const Backend::Transfer going : slot.going) backend_->wait(going);
    slot.going.clear();
  }
}

}  // namespace kintsugi
