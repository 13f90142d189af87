#include "optim/offloaded_update.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace kintsugi {
namespace {

// The elements of the largest block of each rule, and of all under nullptr. There may be millions
// of blocks.
std::map<const UpdateRule*, std::int64_t> largest_blocks(const std::vector<UpdateBlock>& blocks) {
  std::map<const UpdateRule*, std::int64_t> most = {{nullptr, 0}};
  std::int64_t* of_rule = nullptr;
  const UpdateRule* rule = nullptr;
  for (const UpdateBlock& block : blocks) {
    if (of_rule == nullptr || block.rule != rule) of_rule = &most[rule = block.rule];
    *of_rule = std::max(*of_rule, block.count);
  }
  for (const auto& [one, count] : most) most[nullptr] = std::max(most[nullptr], count);
  return most;
}

void wait_for(Backend& backend, std::vector<Backend::Transfer>& transfers) {
  for (const Backend::Transfer transfer : transfers) backend.wait(transfer);
  transfers.clear();
}

}  // namespace

// ---- on the device

StreamedUpdate::StreamedUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
                               const std::vector<UpdateBlock>& blocks, DType precision,
                               const StateOffload& offload, std::size_t ahead)
    : backend_(&backend),
      ahead_(ahead),
      buffers_(std::min(ahead + kLeaving, blocks.size())),
      next_(blocks.size()) {
  allocate(arena, state, blocks, precision, offload);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks_.push_back(on_device(blocks[i], state, offload, buffer(i)));
    Buffer& with = buffer(i);  // reserve now, so that steps allocate no memory
    with.to_device.reserve(blocks_.back().state.size() + blocks_.back().gradients.size());
    with.to_host.reserve(blocks_.back().state.size());
  }
}

void StreamedUpdate::allocate(Arena& arena, const OptimizerState& state,
                              const std::vector<UpdateBlock>& blocks, DType precision,
                              const StateOffload& offload) {
  std::map<const UpdateRule*, std::int64_t> largest = largest_blocks(blocks);
  const auto take = [&](DType dtype, const UpdateRule* rule) {
    return arena.allocate(Region::Optimizer, "state buffers", dtype, {largest[rule]});
  };
  for (Buffer& buffer : buffers_) {
    if (offload.on && state.has_master()) buffer.master = take(state.master().dtype(), nullptr);
    if (offload.on && state.has_ema()) buffer.ema = take(state.ema().dtype(), nullptr);
    for (const auto& [rule, slots] : state.rules()) {
      buffer.slots.emplace_back();
      for (const Tensor& slot : slots)
        if (offload.on) buffer.slots.back().push_back(take(slot.dtype(), rule));
    }
    if (offload.gradients)
      buffer.gradients = arena.allocate(Region::Gradients, "gradient buffers",
                                        accumulator_of(precision), {largest[nullptr]});
  }
}

StreamedUpdate::Block StreamedUpdate::on_device(const UpdateBlock& block,
                                                const OptimizerState& state,
                                                const StateOffload& offload, const Buffer& buffer) {
  Block result{.state = {}, .gradients = {}, .ranges = block.ranges};
  const auto part = [&](const Tensor& x, const UpdateRange& range) {
    return x.rows(range.at - block.first, range.size());
  };
  const auto stream = [&](const Tensor& host, const Tensor& device, Tensor UpdateRange::*tensor) {
    result.state.push_back({host.rows(block.first, block.count), device.rows(0, block.count)});
    for (UpdateRange& range : result.ranges) range.*tensor = part(device, range);
  };
  if (offload.on && state.has_master()) stream(state.master(), buffer.master, &UpdateRange::master);
  if (offload.on && state.has_ema()) stream(state.ema(), buffer.ema, &UpdateRange::ema);
  for (std::size_t rule = 0; offload.on && rule < state.rules().size(); ++rule) {
    if (state.rules()[rule].rule != block.rule) continue;
    for (std::size_t i = 0; i < buffer.slots[rule].size(); ++i) {
      const Tensor& slot = buffer.slots[rule][i];
      result.state.push_back({state.rules()[rule].slots[i].rows(block.slot_first, block.count),
                              slot.rows(0, block.count)});
      for (UpdateRange& range : result.ranges) range.slots[i] = part(slot, range);
    }
  }
  for (UpdateRange& range : result.ranges) {
    if (!offload.gradients) break;
    result.gradients.push_back({range.gradient, part(buffer.gradients, range)});
    range.gradient = result.gradients.back().device;
  }
  return result;
}

void StreamedUpdate::fetch(std::size_t block) {
  Buffer& to = buffer(block);
  wait_for(*backend_, to.to_host);
  for (const auto* tensors : {&blocks_[block].state, &blocks_[block].gradients})
    for (const auto& [host, device] : *tensors)
      to.to_device.push_back(backend_->to_device(device, host));
}

void StreamedUpdate::begin() {
  for (std::size_t block = 0; block < std::min(ahead_, blocks_.size()); ++block) fetch(block);
}

void StreamedUpdate::update(std::size_t block) {
  Buffer& with = buffer(block);
  wait_for(*backend_, with.to_device);
  for (const UpdateRange& range : blocks_[block].ranges) range.update(*backend_, step_);
  for (const auto& [host, device] : blocks_[block].state)
    with.to_host.push_back(backend_->to_host(host, device));
}

void StreamedUpdate::start(const UpdateStep& step) {
  KINTSUGI_CHECK(next_ == blocks_.size(), "an update starts before the last one is finished");
  step_ = step;
  next_ = 0;
}

void StreamedUpdate::run_until(std::size_t block) {
  for (; next_ < std::min(block, blocks_.size()); ++next_) {
    if (next_ + ahead_ < blocks_.size()) fetch(next_ + ahead_);
    update(next_);
  }
}

void StreamedUpdate::finish() {
  run_until(blocks_.size());
  for (Buffer& buffer : buffers_) wait_for(*backend_, buffer.to_host);
}

// ---- on the host

HostUpdate::HostUpdate(Backend& backend, Arena& arena, const std::vector<UpdateBlock>& blocks,
                       DType precision, const StateOffload& offload)
    : backend_(&backend), host_(backend.host()), buffers_(std::min(kBuffers, blocks.size())) {
  KINTSUGI_CHECK(host_ != nullptr, "no backend for the host's side of an update");
  const DType wide = accumulator_of(precision);
  const std::int64_t most = largest_blocks(blocks)[nullptr];
  for (Buffer& buffer : buffers_) {
    if (!offload.gradients)
      buffer.gradients =
          arena.allocate(Region::Gradients, "gradient buffers", wide, {most}, Side::Host);
    buffer.weights =
        arena.allocate(Region::Weights, "weight buffers", precision, {most}, Side::Host);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks_.push_back(on_host(blocks[i], offload, buffer(i)));
    buffer(i).to_host.reserve(blocks_.back().to_host.size());
    buffer(i).to_device.reserve(blocks_.back().weights.size());
  }
  scale_ = arena.allocate(Region::Optimizer, "scalars", wide, {1}, Side::Host);
}

HostUpdate::Block HostUpdate::on_host(const UpdateBlock& block, const StateOffload& offload,
                                      const Buffer& buffer) {
  Block result{.to_host = {}, .weights = {}, .ranges = block.ranges};
  for (UpdateRange& range : result.ranges) {
    const std::int64_t begin = range.at - block.first, count = range.size();
    if (!offload.gradients) {
      result.to_host.push_back({buffer.gradients.rows(begin, count), range.gradient});
      range.gradient = result.to_host.back().host;
    }
    result.weights.push_back({buffer.weights.rows(begin, count), range.weight});
    range.weight = result.weights.back().host;
    if (!range.master) result.to_host.push_back(result.weights.back());
  }
  return result;
}

void HostUpdate::fetch(std::size_t block) {
  Buffer& to = buffer(block);
  for (const Backend::Transfer transfer : to.to_device) backend_->finish(transfer);
  to.to_device.clear();
  for (const auto& [host, device] : blocks_[block].to_host)
    to.to_host.push_back(backend_->to_host(host, device));
}

void HostUpdate::update(std::size_t block, const UpdateStep& step) {
  Buffer& with = buffer(block);
  for (const Backend::Transfer transfer : with.to_host) backend_->finish(transfer);
  with.to_host.clear();
  for (std::size_t i = 0; i < blocks_[block].ranges.size(); ++i) {
    blocks_[block].ranges[i].update(*host_, step);
    const auto& [host, device] = blocks_[block].weights[i];
    with.to_device.push_back(backend_->to_device(device, host));
  }
}

void HostUpdate::run(const UpdateStep& step) {
  // Copies of one direction are done in order, so offloaded gradients are on the host after this.
  backend_->finish(backend_->to_host(scale_, step.scale));
  bool skipped = false;
  visit_float(scale_.dtype(), [&]<class T>() {
    skipped = !std::isfinite(static_cast<double>(static_cast<Accumulator<T>>(*scale_.as<T>())));
  });
  if (skipped) return;  // so that no stale weights are copied back
  UpdateStep host_step = step;
  host_step.scale = scale_;
  const std::size_t ahead = buffers_.size() > 1 ? buffers_.size() - 1 : 1;
  for (std::size_t block = 0; block < std::min(ahead, blocks_.size()); ++block) fetch(block);
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    update(block, host_step);
    if (block + ahead < blocks_.size()) fetch(block + ahead);
  }
  for (Buffer& buffer : buffers_) wait_for(*backend_, buffer.to_device);
}

}  // namespace kintsugi
