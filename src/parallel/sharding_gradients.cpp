// Reduces gradients over the data ranks and stores them in their owner's memory.

#include <algorithm>
#include <functional>
#include <utility>

#include "parallel/sharding.h"

namespace kintsugi {

GradientOffload::GradientOffload(Backend& backend, Arena& arena, DType dtype, std::int64_t elements,
                                 std::int64_t largest, std::size_t norms)
    : backend_(&backend),
      gradients_(
          arena.allocate(Region::Gradients, "gradients, sharded", dtype, {elements}, Side::Host)) {
  for (std::size_t i = 0; i < norms; ++i)
    squared_norms_.push_back(arena.allocate(Region::Gradients, "scalars", dtype, {1}));
  for (Fetch& fetch : fetches_)
    fetch.buffer = arena.allocate(Region::Communication, "fetched gradients", dtype, {largest});
}

void GradientOffload::zero_state() {
  backend_->fill(gradients_, 0.0);
  for (const Tensor& norm : squared_norms_) backend_->fill(norm, 0.0);
}

void GradientOffload::fetch(Tensor host) {
  KINTSUGI_CHECK(fetched_ - added_ < kInFlight, "{} fetches of gradients are already in flight",
                 fetched_ - added_);
  Fetch& fetch = fetches_[fetched_++ % kInFlight];
  fetch.elements = host.elements();
  fetch.transfer = backend_->to_device(fetch.buffer.rows(0, fetch.elements), host);
}

void GradientOffload::add_fetched(Tensor sum) {
  Fetch& fetch = fetches_[added_++ % kInFlight];
  KINTSUGI_CHECK(fetch.elements == sum.elements(), "{} elements were fetched for a sum of {}",
                 fetch.elements, sum.elements());
  backend_->wait(std::exchange(fetch.transfer, {}));
  backend_->add(sum, fetch.buffer.rows(0, fetch.elements));
}

// With ZeRO 1, the first micro-batch waits for gathered weights. Unsharded gradients are reduced in
// the last.
bool Sharding::has_no_transfers(bool first, bool last) const {
  if (offload_) return false;
  bool shards = false, replicates = false;
  for (const DataGroups& data : data_groups_) {
    shards = shards || (*groups_)[data.shard].size() > 1;
    replicates = replicates || (*groups_)[data.replica].size() > 1;
  }
  if (!shards && !replicates) return true;
  return whole_gradients_ && zero_ < 3 && !last && !(first && shards);
}

// Clears the gradients that are accumulated instead of being overwritten by a matmul.
void Sharding::zero_accumulated(int bucket) {
  const Tensor flat = store_.bucket_gradients(bucket);
  for (const auto& [begin, end] : accumulated_[bucket])
    backend_->fill(flat.rows(begin, end - begin), 0.0);
}

void Sharding::need_gradients(int bucket, bool first) {
  if (!trained(bucket)) return;
  if (!whole_gradients_) {
    Slot& slot = slot_of(bucket);
    finish_reductions_of(slot);
    store_.set_gradients(bucket, slot.gradients.rows(0, whole_elements(bucket)));
  }
  if (first) apply_late_update(bucket);  // it reads the gradients of the previous step
  if (overwrites(first)) zero_accumulated(bucket);
}

void Sharding::done_with_gradients(int bucket, bool first, bool last) {
  if (!trained(bucket)) return;
  if (!whole_gradients_ || (last && shard(bucket).size() > 1))
    start_scatter(bucket, first, last);
  else if (last && replica(bucket).size() > 1)
    start_replicate(bucket);
}

Tensor Sharding::to_wire(const Tensor& x) {
  if (!wire_[0]) return x;
  const Tensor wire = wire_[next_wire_].rows(0, x.elements());
  next_wire_ ^= 1;
  backend_->copy(wire, x);
  return wire;
}

// Sharded or offloaded gradients take this path even if the shard group has one rank.
void Sharding::start_scatter(int bucket, bool first, bool last) {
  while (reductions_.size() >= kInFlight) finish_oldest();
  if (offload_ && !first && owned(bucket).size() > 0) offload_->fetch(owned_gradients(bucket));
  const Tensor whole = store_.bucket_gradients(bucket);
  Reduction reduction{bucket, true, first, last, whole, {}};
  if (shard(bucket).size() > 1) {
    reduction.sum = to_wire(whole);
    reduction.work = shard(bucket).reduce_scatter(own_shard(bucket, reduction.sum), reduction.sum);
  }
  reductions_.push_back(reduction);
}

void Sharding::start_replicate(int bucket) {
  if (owned(bucket).size() == 0) return;
  while (reductions_.size() >= kInFlight) finish_oldest();
  const Tensor sum = to_wire(device_gradients(bucket));
  reductions_.push_back({bucket, false, false, true, sum, replica(bucket).all_reduce(sum)});
}

Tensor Sharding::device_gradients(int bucket) {
  if (!offload_) return owned_gradients(bucket);
  return own_shard(bucket, slot_of(bucket).gradients.rows(0, whole_elements(bucket)))
      .rows(0, owned(bucket).size());
}

void Sharding::store_sum(const Reduction& done, Tensor owned) {
  const std::int64_t n = owned.elements();
  const Tensor sum = done.scattering ? own_shard(done.bucket, done.sum).rows(0, n) : done.sum;
  const bool accumulate = done.scattering && !whole_gradients_ && !done.first;
  if (accumulate && !offload_ && sum.dtype() != owned.dtype()) {
    backend_->copy(incoming_.rows(0, n), sum);
    backend_->add(owned, incoming_.rows(0, n));
  } else if (accumulate && !offload_) {
    backend_->add(owned, sum);
  } else if (sum.data() != owned.data()) {
    backend_->copy(owned, sum);
  }
  if (accumulate && offload_) offload_->add_fetched(owned);
}

// Adds to the squared norm, except for gradients that CopySums reduces later: it adds those.
void Sharding::send_to_host(int bucket, bool last) {
  const Tensor owned = device_gradients(bucket);
  const auto add_squares = [&](std::int64_t first, std::int64_t count) {
    backend_->squared_norm(offload_->squared_norm(data_group(bucket)), owned.rows(first, count));
  };
  if (last)
    for_each_owned_range(
        bucket,
        [](const Parameter& parameter) {
          return !parameter.counted || !parameter.sum_over.empty();
        },
        std::cref(add_squares));  // std::function would allocate memory for a copy
  slot_of(bucket).to_host = backend_->to_host(owned_gradients(bucket), owned);
}

void Sharding::finish_oldest() {
  const Reduction done = reductions_.front();
  reductions_.erase(reductions_.begin());
  (done.scattering ? shard(done.bucket) : replica(done.bucket)).wait(done.work);
  if (owned(done.bucket).size() == 0) return;
  store_sum(done, device_gradients(done.bucket));
  if (done.scattering && done.last && replica(done.bucket).size() > 1)
    start_replicate(done.bucket);
  else if (offload_)
    send_to_host(done.bucket, done.last);
}

// Also waits for the copy of the slot's gradients to the host.
void Sharding::finish_reductions_of(Slot& slot) {
  while (std::ranges::any_of(reductions_, [&](const Reduction& reduction) {
    return (reduction.scattering || offload_) && &slot_of(reduction.bucket) == &slot;
  }))
    finish_oldest();
  backend_->wait(std::exchange(slot.to_host, {}));
}

void Sharding::finish_gradients() {
  while (!reductions_.empty()) finish_oldest();
  for (Slot& slot : slots_) backend_->wait(std::exchange(slot.to_host, {}));
}

}  // namespace kintsugi
