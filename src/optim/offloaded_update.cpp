#include "optim/offloaded_update.h"

#include <algorithm>
#include <cmath>

namespace kintsugi {
namespace {

// Elements of the largest piece; of a rule, if one is named.
std::int64_t largest(const std::vector<UpdatePiece>& pieces, const UpdateRule* rule = nullptr) {
  std::int64_t most = 0;
  for (const UpdatePiece& piece : pieces)
    if (rule == nullptr || piece.rule == rule) most = std::max(most, piece.count);
  return most;
}

void wait_for(Backend& backend, std::vector<Backend::Transfer>& transfers) {
  for (const Backend::Transfer transfer : transfers) backend.wait(transfer);
  transfers.clear();
}

}  // namespace

// ---- on the device

StreamedUpdate::StreamedUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
                               const std::vector<UpdatePiece>& pieces, DType precision,
                               const StateOffload& offload, std::size_t ahead)
    : backend_(&backend),
      ahead_(ahead),
      buffers_(std::min(ahead + kLeaving, pieces.size())),
      next_(pieces.size()) {
  allocate(arena, state, pieces, precision, offload);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces_.push_back(on_device(pieces[i], state, offload, buffer(i)));
    Buffer& with = buffer(i);  // steps take no memory
    with.coming.reserve(pieces_.back().state.size() + pieces_.back().gradients.size());
    with.going.reserve(pieces_.back().state.size());
  }
}

void StreamedUpdate::allocate(Arena& arena, const OptimizerState& state,
                              const std::vector<UpdatePiece>& pieces, DType precision,
                              const StateOffload& offload) {
  const auto take = [&](DType dtype, const UpdateRule* rule) {
    return arena.allocate(Region::Optimizer, "state on its way", dtype, {largest(pieces, rule)});
  };
  for (Buffer& buffer : buffers_) {
    if (offload.on && state.has_master()) buffer.master = take(state.master().dtype(), nullptr);
    for (const auto& [rule, slots] : state.rules()) {
      buffer.slots.emplace_back();
      for (const Tensor& slot : slots)
        if (offload.on) buffer.slots.back().push_back(take(slot.dtype(), rule));
    }
    if (offload.gradients)
      buffer.gradients = arena.allocate(Region::Gradients, "gradients on their way",
                                        accumulator_of(precision), {largest(pieces)});
  }
}

StreamedUpdate::Piece StreamedUpdate::on_device(const UpdatePiece& piece,
                                                const OptimizerState& state,
                                                const StateOffload& offload, const Buffer& buffer) {
  Piece here{.state = {}, .gradients = {}, .ranges = piece.ranges};
  const auto part = [&](const Tensor& x, const UpdateRange& range) {
    return x.rows(range.at - piece.first, range.size());
  };
  if (offload.on && state.has_master()) {
    here.state.push_back(
        {state.master().rows(piece.first, piece.count), buffer.master.rows(0, piece.count)});
    for (UpdateRange& range : here.ranges) range.master = part(buffer.master, range);
  }
  for (std::size_t rule = 0; offload.on && rule < state.rules().size(); ++rule) {
    if (state.rules()[rule].rule != piece.rule) continue;
    for (std::size_t i = 0; i < buffer.slots[rule].size(); ++i) {
      const Tensor& slot = buffer.slots[rule][i];
      here.state.push_back({state.rules()[rule].slots[i].rows(piece.slot_first, piece.count),
                            slot.rows(0, piece.count)});
      for (UpdateRange& range : here.ranges) range.slots[i] = part(slot, range);
    }
  }
  for (UpdateRange& range : here.ranges) {
    if (!offload.gradients) break;
    here.gradients.push_back({range.gradient, part(buffer.gradients, range)});
    range.gradient = here.gradients.back().device;
  }
  return here;
}

void StreamedUpdate::fetch(std::size_t piece) {
  Buffer& to = buffer(piece);
  wait_for(*backend_, to.going);
  for (const auto* tensors : {&pieces_[piece].state, &pieces_[piece].gradients})
    for (const auto& [host, device] : *tensors)
      to.coming.push_back(backend_->to_device(device, host));
}

void StreamedUpdate::begin() {
  for (std::size_t piece = 0; piece < std::min(ahead_, pieces_.size()); ++piece) fetch(piece);
}

void StreamedUpdate::update(std::size_t piece) {
  Buffer& with = buffer(piece);
  wait_for(*backend_, with.coming);
  for (const UpdateRange& range : pieces_[piece].ranges) range.update(*backend_, step_);
  for (const auto& [host, device] : pieces_[piece].state)
    with.going.push_back(backend_->to_host(host, device));
}

void StreamedUpdate::start(const UpdateStep& step) {
  KINTSUGI_CHECK(next_ == pieces_.size(), "an update starts before the last one is over");
  step_ = step;
  next_ = 0;
}

void StreamedUpdate::run_until(std::size_t piece) {
  for (; next_ < std::min(piece, pieces_.size()); ++next_) {
    if (next_ + ahead_ < pieces_.size()) fetch(next_ + ahead_);
    update(next_);
  }
}

void StreamedUpdate::finish() {
  run_until(pieces_.size());
  for (Buffer& buffer : buffers_) wait_for(*backend_, buffer.going);
}

// ---- on the host

HostUpdate::HostUpdate(Backend& backend, Arena& arena, const std::vector<UpdatePiece>& pieces,
                       DType precision, const StateOffload& offload)
    : backend_(&backend), host_(backend.host()), buffers_(std::min(kBuffers, pieces.size())) {
  KINTSUGI_CHECK(host_ != nullptr, "no backend for the host's side of an update");
  const DType wide = accumulator_of(precision);
  const std::int64_t most = largest(pieces);
  for (Buffer& buffer : buffers_) {
    if (!offload.gradients)
      buffer.gradients =
          arena.allocate(Region::Gradients, "gradients on their way", wide, {most}, Side::Host);
    buffer.weights =
        arena.allocate(Region::Weights, "weights on their way", precision, {most}, Side::Host);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces_.push_back(on_host(pieces[i], offload, buffer(i)));
    buffer(i).coming.reserve(pieces_.back().coming.size());
    buffer(i).going.reserve(pieces_.back().weights.size());
  }
  scale_ = arena.allocate(Region::Optimizer, "scalars", wide, {1}, Side::Host);
}

HostUpdate::Piece HostUpdate::on_host(const UpdatePiece& piece, const StateOffload& offload,
                                      const Buffer& buffer) {
  Piece here{.coming = {}, .weights = {}, .ranges = piece.ranges};
  for (UpdateRange& range : here.ranges) {
    const std::int64_t begin = range.at - piece.first, count = range.size();
    if (!offload.gradients) {
      here.coming.push_back({buffer.gradients.rows(begin, count), range.gradient});
      range.gradient = here.coming.back().host;
    }
    here.weights.push_back({buffer.weights.rows(begin, count), range.weight});
    range.weight = here.weights.back().host;
    if (!range.master) here.coming.push_back(here.weights.back());
  }
  return here;
}

void HostUpdate::fetch(std::size_t piece) {
  Buffer& to = buffer(piece);
  for (const Backend::Transfer going : to.going) backend_->finish(going);
  to.going.clear();
  for (const auto& [host, device] : pieces_[piece].coming)
    to.coming.push_back(backend_->to_host(host, device));
}

void HostUpdate::update(std::size_t piece, const UpdateStep& step) {
  Buffer& with = buffer(piece);
  for (const Backend::Transfer coming : with.coming) backend_->finish(coming);
  with.coming.clear();
  for (std::size_t i = 0; i < pieces_[piece].ranges.size(); ++i) {
    pieces_[piece].ranges[i].update(*host_, step);
    const auto& [host, device] = pieces_[piece].weights[i];
    with.going.push_back(backend_->to_device(device, host));
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
  UpdateStep here = step;
  here.scale = scale_;
  const std::size_t ahead = buffers_.size() > 1 ? buffers_.size() - 1 : 1;
  for (std::size_t piece = 0; piece < std::min(ahead, pieces_.size()); ++piece) fetch(piece);
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    update(piece, here);
    if (piece + ahead < pieces_.size()) fetch(piece + ahead);
  }
  for (Buffer& buffer : buffers_) wait_for(*backend_, buffer.going);
}

}  // namespace kintsugi
