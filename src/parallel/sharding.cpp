#include "parallel/sharding.h"

#include <algorithm>
#include <exception>

#include "core/log.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kLine = 16;  // elements: shards start on cache lines

std::int64_t shard_size(std::int64_t elements, int ranks) {
  if (ranks == 1) return elements;
  const std::int64_t even = (elements + ranks - 1) / ranks;
  return (even + kLine - 1) / kLine * kLine;
}

std::vector<DataGroups> data_groups_of(const ParameterSet& set) {
  std::vector<DataGroups> all;
  for (const Bucket& bucket : set.buckets())
    if (std::ranges::find(all, bucket.data) == all.end()) all.push_back(bucket.data);
  return all;
}

bool has_shard_group(const std::vector<DataGroups>& all, const Groups& groups) {
  return std::ranges::any_of(all,
                             [&](const DataGroups& data) { return groups[data.shard].size() > 1; });
}

}  // namespace

Sharding::Sharding(Backend& backend, Arena& arena, const ParameterSet& set, const Groups& groups,
                   const ShardingOptions& options)
    : backend_(&backend),
      set_(&set),
      groups_(&groups),
      options_(options),
      data_groups_(data_groups_of(set)),
      zero_(has_shard_group(data_groups_, groups) ? options.zero : 0),
      whole_gradients_((zero_ < 2 && !options.offload_gradients) || options.halved_backward),
      store_(set, options.precision),
      buckets_(static_cast<int>(set.buckets().size())),
      gathering_(set.buckets().size()) {
  KINTSUGI_CHECK(zero_ > 0 || !has_shard_group(data_groups_, groups),
                 "the shard group has several ranks, but ZeRO is 0");
  KINTSUGI_CHECK(!options.offload_gradients || !options.halved_backward,
                 "gradients cannot be offloaded if the backward runs in two halves");
  for (const Bucket& bucket : set.buckets()) {
    const int ranks = groups[bucket.data.shard].size();
    shard_sizes_.push_back(shard_size(bucket.end - bucket.begin, ranks));
    const bool unrounded = is_unrounded(static_cast<int>(shard_sizes_.size()) - 1);
    weight_offsets_.add(unrounded ? 0 : shard_sizes_.back(), ranks);
    unrounded_offsets_.add(unrounded ? shard_sizes_.back() : 0, ranks);
    gradient_offsets_.add(bucket.trained ? shard_sizes_.back() : 0, ranks);
  }
  find_slots();
  reductions_.reserve(2 * kInFlight + 1);
  find_accumulated();
  allocate(arena);
}

void Sharding::Offsets::add(std::int64_t shard, int ranks) {
  if (sharded.empty()) sharded = whole = {0};
  sharded.push_back(sharded.back() + shard);
  whole.push_back(whole.back() + shard * ranks);
}

Sharding::~Sharding() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    finish_weights();
  } catch (const std::exception& error) {
    log_warning("the weights of the last step were not gathered: {}", error.what());
  }
}

void Sharding::allocate(Arena& arena) {
  const DType wide = accumulator_of(options_.precision);
  std::int64_t largest = 0, largest_whole = 0;  // of those that are trained
  bool communicates = false;
  for (int bucket = 0; bucket < buckets_; ++bucket) {
    if (!trained(bucket)) continue;
    largest = std::max(largest, shard_elements(bucket));
    largest_whole = std::max(largest_whole, whole_elements(bucket));
    communicates = communicates || shard(bucket).size() * replica(bucket).size() > 1;
  }
  allocate_weights(arena);
  const std::int64_t gradients = gradient_offsets_.end(whole_gradients_);
  if (options_.offload_gradients && gradients > 0)
    gradients_ = offload_.emplace(*backend_, arena, wide, gradients, largest, data_groups_.size())
                     .gradients();
  else if (gradients > 0)
    gradients_ =
        arena.allocate(Region::Gradients, whole_gradients_ ? "gradients" : "gradients, sharded",
                       wide, {gradients});
  allocate_slots(arena);
  store_.allocate_quantized(arena, zero_ == 3 || !options_.keep_fp8_weights);
  if (options_.reduce_in_bf16 && communicates && wide == DType::F32) {
    for (Tensor& wire : wire_)
      wire = arena.allocate(Region::Communication, "bf16 gradients", DType::BF16, {largest_whole});
    incoming_ = arena.allocate(Region::Communication, "received gradients", wide, {largest});
  }
  for (int bucket = 0; bucket < buckets_; ++bucket)
    if (whole_gradients_ && trained(bucket)) store_.set_gradients(bucket, whole_gradients(bucket));
}

void Sharding::allocate_weights(Arena& arena) {
  weights_ = arena.allocate(Region::Weights, zero_ < 3 ? "weights" : "weights, sharded",
                            options_.precision, {weight_offsets_.end(zero_ < 3)});
  if (const std::int64_t unrounded = unrounded_offsets_.end(zero_ < 3); unrounded > 0)
    unrounded_weights_ = arena.allocate(Region::Optimizer, "master weights",
                                        accumulator_of(options_.precision), {unrounded});
  if (zero_ == 3) return;
  for (int bucket = 0; bucket < buckets_; ++bucket)
    store_.set_weights(bucket, stored_memory(bucket));
}

Tensor Sharding::stored_memory(int bucket) const {
  const auto b = static_cast<std::size_t>(bucket);
  const bool unrounded = is_unrounded(bucket);
  const Offsets& offsets = unrounded ? unrounded_offsets_ : weight_offsets_;
  const Tensor& weights = unrounded ? unrounded_weights_ : weights_;
  return zero_ < 3 ? weights.rows(offsets.whole[b], whole_elements(bucket))
                   : weights.rows(offsets.sharded[b], shard_elements(bucket));
}

bool Sharding::is_unrounded(int bucket) const {
  const Bucket& one = set_->buckets()[bucket];
  if (accumulator_of(options_.precision) == options_.precision) return false;
  return one.wide || (options_.unrounded_fp8_weights && one.fp8 && one.trained && zero_ < 3 &&
                      shard(bucket).size() == 1);
}

void Sharding::allocate_slots(Arena& arena) {
  for (Slot& slot : slots_) {
    if (slot.elements == 0) continue;
    if (zero_ == 3)
      slot.weights =
          arena.allocate(Region::Communication, "gathered weights", slot.dtype, {slot.elements});
    if (!whole_gradients_ && slot.trained)
      slot.gradients = arena.allocate(Region::Communication, "gradients of a layer",
                                      accumulator_of(options_.precision), {slot.elements});
  }
}

void Sharding::find_accumulated() {
  accumulated_.resize(static_cast<std::size_t>(buckets_));
  for (std::size_t b = 0; b < accumulated_.size(); ++b) {
    std::int64_t covered = 0;  // end of the last range that a matmul overwrites
    const auto add = [&](std::int64_t end) {
      if (end > covered) accumulated_[b].emplace_back(covered, end);
    };
    for (int index = 0; index < static_cast<int>(set_->parameters().size()); ++index) {
      const Parameter& parameter = (*set_)[index];
      if (parameter.bucket != static_cast<int>(b) || !parameter.overwritten) continue;
      const std::int64_t begin = parameter.offset - set_->buckets()[b].begin;
      add(begin);
      // The last tensor rank's shard may end in padding.
      covered =
          begin + (parameter.shard.dimension == 0 && parameter.shard.parts == 1
                       ? set_->rows(index).size() * (parameter.shape.elements() /
                                                     std::max<std::int64_t>(1, parameter.shape[0]))
                       : parameter.shape.elements());
    }
    add(whole_elements(static_cast<int>(b)));
  }
}

void Sharding::zero_state() {
  backend_->fill(weights_, 0.0);
  if (unrounded_weights_) backend_->fill(unrounded_weights_, 0.0);
  if (offload_)
    offload_->zero_state();
  else if (gradients_)
    backend_->fill(gradients_, 0.0);
  register_memory();
}

void Sharding::register_memory() {
  registered_.clear();
  const auto add = [&](Communicator& group, const Tensor& memory) {
    if (group.size() > 1 && memory) registered_.push_back(group.register_memory(memory));
  };
  for (const DataGroups& data : data_groups_) {
    Communicator& shard = (*groups_)[data.shard];
    add(shard, weights_);
    add(shard, unrounded_weights_);
    for (Communicator* const group : {&shard, &(*groups_)[data.replica]}) {
      if (!offload_) add(*group, gradients_);
      for (const Tensor& wire : wire_) add(*group, wire);
      for (const Slot& slot : slots_)
        if (slot.shard == &shard) add(*group, slot.gradients);
    }
    for (const Slot& slot : slots_)
      if (slot.shard == &shard) add(shard, slot.weights);
  }
}

// Four slots per data group, each for the buckets that are trained and for those that are not, and
// for those that fp8 matmuls read and for others, and for those that are wide, since a layer may
// have all of them. Blocks alternate between slots 0 and 1. Embedding and head share slot 2; if
// they are tied and both are in use at the same time, the head gets slot 3. A tied table whose
// other copy is on another stage gets slot 3.
void Sharding::find_slots() {
  constexpr std::size_t kEach = 4, kKinds = 5;
  slots_.resize(kKinds * kEach * data_groups_.size());
  std::vector<std::size_t> blocks(kKinds * data_groups_.size());  // so far
  const auto kind_of = [](const Bucket& bucket) -> std::size_t {
    return bucket.wide ? 4 : (bucket.trained ? 0 : 2) + (bucket.fp8 ? 1 : 0);
  };
  const bool tied_in_stage =
      options_.tied && set_->buckets().front().role == Bucket::Role::Embedding;
  for (int bucket = 0; bucket < buckets_; ++bucket) {
    const std::size_t group = kKinds * data_group(bucket) + kind_of(set_->buckets()[bucket]);
    std::size_t at = 3;
    switch (set_->buckets()[bucket].role) {
      case Bucket::Role::Block:
        at = blocks[group]++ % 2;
        break;
      case Bucket::Role::Embedding:
        at = 2;
        break;
      case Bucket::Role::Head:
        at = tied_in_stage ? 3 : 2;
        break;
      case Bucket::Role::Table:
        break;
    }
    slot_of_.push_back(kEach * group + at);
    Slot& slot = slot_of(bucket);
    slot.shard = &shard(bucket);
    slot.trained = trained(bucket);
    slot.dtype = is_unrounded(bucket) ? accumulator_of(options_.precision) : options_.precision;
    slot.elements = std::max(slot.elements, whole_elements(bucket));
  }
}

std::size_t Sharding::data_group(int bucket) const {
  const auto found = std::ranges::find(data_groups_, data_of(bucket));
  return static_cast<std::size_t>(found - data_groups_.begin());
}

// ---- elements that this rank owns

Sharding::Range Sharding::owned_by(int bucket, int shard_rank) const {
  const Bucket& all = set_->buckets()[bucket];
  const std::int64_t elements = shard_elements(bucket);
  const std::int64_t begin = std::min(all.end, all.begin + elements * shard_rank);
  return {begin, std::min(all.end, begin + elements)};
}

Tensor Sharding::own_shard(int bucket, const Tensor& whole) const {
  const std::int64_t elements = shard_elements(bucket);
  return whole.rows(elements * shard(bucket).rank(), elements);
}

Tensor Sharding::owned_weights(int bucket) const { return weights_at(bucket, owned(bucket)); }

Tensor Sharding::whole_gradients(int bucket) const {
  return gradients_.rows(gradient_offsets_.whole[bucket], whole_elements(bucket));
}

Tensor Sharding::owned_gradients(int bucket) const {
  const Tensor padded =
      whole_gradients_ ? own_shard(bucket, whole_gradients(bucket))
                       : gradients_.rows(gradient_offsets_.sharded[bucket], shard_elements(bucket));
  return padded.rows(0, owned(bucket).size());
}

std::vector<Tensor> Sharding::counted_gradients(std::size_t group) const {
  if (!gradients_) return {};
  const auto& parameters = set_->parameters();
  const bool all =
      data_groups_.size() == 1 && std::ranges::all_of(parameters, [](const Parameter& parameter) {
        return parameter.counted || !parameter.trained;
      });
  // All gradients are contiguous, and padding is zero: one tensor.
  if (all && (shard(0).size() == 1 || !whole_gradients_)) return {gradients_};
  std::vector<Tensor> gradients;
  for (int bucket = 0; bucket < buckets_; ++bucket)
    if (trained(bucket) && data_group(bucket) == group)
      for_each_owned_range(
          bucket, [](const Parameter& parameter) { return !parameter.counted; },
          [&](std::int64_t first, std::int64_t count) {
            gradients.push_back(owned_gradients(bucket).rows(first, count));
          });
  return gradients;
}

void Sharding::for_each_owned_range(
    int bucket, bool (*leave_out)(const Parameter&),
    const std::function<void(std::int64_t, std::int64_t)>& f) const {
  const Range range = owned(bucket);
  std::int64_t begin = range.begin;
  const auto emit_until = [&](std::int64_t end) {
    end = std::min(end, range.end);
    if (begin < end) f(begin - range.begin, end - begin);
  };
  for (const Parameter& parameter : set_->parameters()) {
    if (parameter.bucket != bucket || !leave_out(parameter)) continue;
    emit_until(parameter.offset);
    begin = std::max(begin, parameter.offset + parameter.shape.elements());
  }
  emit_until(range.end);
}

Sharding::Range Sharding::stored_weights(int bucket) const {
  const Bucket& all = set_->buckets()[bucket];
  return zero_ < 3 ? Range{all.begin, all.end} : owned(bucket);
}

Tensor Sharding::weights_at(int bucket, Range range) const {
  return stored_memory(bucket).rows(range.begin - stored_weights(bucket).begin, range.size());
}

// ---- weights

void Sharding::gather(int bucket) {
  Slot& slot = slot_of(bucket);
  if (slot.bucket == bucket || slot.busy) return;
  slot.shard->wait(std::exchange(slot.gathering, {}));  // of prefetched weights that were not used
  apply_late_update(bucket);
  slot.bucket = bucket;
  slot.gathering =
      slot.shard->all_gather(slot.weights.rows(0, whole_elements(bucket)), stored_memory(bucket));
}

void Sharding::need_weights(int bucket) {
  if (zero_ == 3) {
    gather(bucket);
    Slot& slot = slot_of(bucket);
    KINTSUGI_CHECK(slot.bucket == bucket, "the slot of bucket {} still holds bucket {}", bucket,
                   slot.bucket);
    slot.shard->wait(std::exchange(slot.gathering, {}));
    slot.busy = true;
    store_.set_weights(bucket, slot.weights.rows(0, whole_elements(bucket)));
  } else {
    apply_late_update(bucket);
    shard(bucket).wait(std::exchange(gathering_[bucket], {}));
  }
}

void Sharding::done_with_weights(int bucket) {
  if (zero_ < 3) return;
  slot_of(bucket).busy = false;
  store_.set_weights(bucket, {});
}

void Sharding::weights_changed() {
  if (zero_ == 3) {
    for (Slot& slot : slots_) {
      KINTSUGI_CHECK(!slot.busy, "bucket {} is in use while its weights change", slot.bucket);
      if (slot.shard != nullptr) slot.shard->wait(std::exchange(slot.gathering, {}));
      slot.bucket = -1;
    }
    return;
  }
  for (int bucket = 0; bucket < buckets_; ++bucket) {
    if (shard(bucket).size() == 1 || !trained(bucket)) continue;
    const Tensor whole = store_.bucket_weights(bucket);
    apply_late_update(bucket);
    gathering_[bucket] = shard(bucket).all_gather(whole, own_shard(bucket, whole));
  }
}

void Sharding::finish_weights() {
  apply_late_update(buckets_);
  for (int bucket = 0; bucket < buckets_; ++bucket)
    shard(bucket).wait(std::exchange(gathering_[bucket], {}));
}

}  // namespace kintsugi
