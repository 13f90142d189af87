// The way of gradients: from a stage, through sums over the data ranks, to their owner's memory.
#include <algorithm>
#include <functional>
#include <utility>

#include "parallel/sharding.h"

namespace kintsugi {

// Weights of ZeRO 1 arrive in the first pass, sums of whole gradients leave in the last.
bool Sharding::is_idle_in(bool first, bool last) const {
  if (offload_) return false;
  bool shares = false, repeats = false;
  for (const DataGroups& data : data_groups_) {
    shares = shares || (*groups_)[data.shard].size() > 1;
    repeats = repeats || (*groups_)[data.replica].size() > 1;
  }
  if (!shares && !repeats) return true;
  return whole_gradients_ && zero_ < 3 && !last && !(first && shares);
}

// What is added to, instead of being written by one product, starts at zero.
void Sharding::zero_added(int bucket) {
  const Tensor flat = store_.bucket_gradients(bucket);
  for (const auto& [begin, end] : added_[static_cast<std::size_t>(bucket)])
    backend_->fill(flat.rows(begin, end - begin), 0.0);
}

void Sharding::need_gradients(int bucket, bool first) {
  if (!whole_gradients_) {
    Slot& slot = slot_of(bucket);
    finish_reductions_of(slot);
    store_.place_gradients(bucket, slot.gradients.rows(0, whole_elements(bucket)));
  }
  if (first) bring_up_to_date(bucket);  // which reads the gradients of the step before
  if (overwrites(first)) zero_added(bucket);
}

void Sharding::done_with_gradients(int bucket, bool first, bool last) {
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

// Gradients that are not whole leave the same way where there is nobody to share with.
void Sharding::start_scatter(int bucket, bool first, bool last) {
  while (reductions_.size() >= kInFlight) finish_oldest();
  if (offload_ && !first && owned(bucket).size() > 0) offload_->fetch(owned_gradients(bucket));
  const Tensor whole = store_.bucket_gradients(bucket);
  Reduction leaving{bucket, true, first, last, whole, {}};
  if (shard(bucket).size() > 1) {
    leaving.sum = to_wire(whole);
    leaving.work = shard(bucket).reduce_scatter(part(bucket, leaving.sum), leaving.sum);
  }
  reductions_.push_back(leaving);
}

void Sharding::start_replicate(int bucket) {
  if (owned(bucket).size() == 0) return;
  while (reductions_.size() >= kInFlight) finish_oldest();
  const Tensor sum = to_wire(gradients_here(bucket));
  reductions_.push_back({bucket, false, false, true, sum, replica(bucket).all_reduce(sum)});
}

Tensor Sharding::gradients_here(int bucket) {
  if (!offload_) return owned_gradients(bucket);
  return part(bucket, slot_of(bucket).gradients.rows(0, whole_elements(bucket)))
      .rows(0, owned(bucket).size());
}

void Sharding::take_sum(const Reduction& done, Tensor mine) {
  const std::int64_t n = mine.elements();
  const Tensor sum = done.scattering ? part(done.bucket, done.sum).rows(0, n) : done.sum;
  const bool more = done.scattering && !whole_gradients_ && !done.first;
  if (more && !offload_ && sum.dtype() != mine.dtype()) {
    backend_->copy(incoming_.rows(0, n), sum);
    backend_->add(mine, incoming_.rows(0, n));
  } else if (more && !offload_) {
    backend_->add(mine, sum);
  } else if (sum.data() != mine.data()) {
    backend_->copy(mine, sum);
  }
  if (more && offload_) offload_->add_fetched(mine);
}

// Squares of sums that CopySums completes later are its to add.
void Sharding::send_gradients(int bucket, bool last) {
  const Tensor mine = gradients_here(bucket);
  const auto add_squares = [&](std::int64_t first, std::int64_t count) {
    backend_->squared_norm(offload_->squared_norm(data_group(bucket)), mine.rows(first, count));
  };
  if (last)
    for_each_owned_run(
        bucket,
        [](const Parameter& parameter) {
          return !parameter.counted || !parameter.sum_over.empty();
        },
        std::cref(add_squares));  // a copy would not fit a function object without memory
  slot_of(bucket).going = backend_->to_host(owned_gradients(bucket), mine);
}

void Sharding::finish_oldest() {
  const Reduction done = reductions_.front();
  reductions_.erase(reductions_.begin());
  (done.scattering ? shard(done.bucket) : replica(done.bucket)).wait(done.work);
  if (owned(done.bucket).size() == 0) return;
  take_sum(done, gradients_here(done.bucket));
  if (done.scattering && done.last && replica(done.bucket).size() > 1)
    start_replicate(done.bucket);
  else if (offload_)
    send_gradients(done.bucket, done.last);
}

// And whatever else still reads the slot's gradients.
void Sharding::finish_reductions_of(Slot& slot) {
  while (std::any_of(reductions_.begin(), reductions_.end(), [&](const Reduction& reduction) {
    return (reduction.scattering || offload_) && &slot_of(reduction.bucket) == &slot;
  }))
    finish_oldest();
  backend_->wait(std::exchange(slot.going, {}));
}

void Sharding::finish_gradients() {
  while (!reductions_.empty()) finish_oldest();
  for (Slot& slot : slots_) backend_->wait(std::exchange(slot.going, {}));
}

}  // namespace kintsugi
