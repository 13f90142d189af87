#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/grid.h"
#include "model/parameter_store.h"

namespace kintsugi {

// Keeps the owned gradients in host memory. After each micro-batch, the gradients of earlier
// micro-batches are fetched, added to the new ones on the device, and the sum is copied back.
class GradientOffload {
 public:
  // A fetch has at most `largest` elements; at most kInFlight fetches are in flight. `norms`:
  // number of squared norms.
  static constexpr std::size_t kInFlight = 2;
  GradientOffload(Backend& backend, Arena& arena, DType dtype, std::int64_t elements,
                  std::int64_t largest, std::size_t norms);

  Tensor gradients() const { return gradients_; }  // in host memory
  // (1), on the device. Sharding and CopySums add the squares of final gradients to it as they are
  // copied to the host.
  Tensor squared_norm(std::size_t which) const { return squared_norms_[which]; }
  void zero_state();

  // Starts to copy earlier gradients to the device.
  void fetch(Tensor host);
  // Adds the gradients of the oldest fetch to `sum`.
  void add_fetched(Tensor sum);

 private:
  struct Fetch {
    Tensor buffer;
    std::int64_t elements = 0;
    Backend::Transfer transfer = {};
  };

  Backend* backend_;
  Tensor gradients_;
  std::vector<Tensor> squared_norms_;
  std::array<Fetch, kInFlight> fetches_;
  std::size_t fetched_ = 0, added_ = 0;  // number of calls so far
};

struct ShardingOptions {
  // ZeRO stage: what is sharded over the ranks of a shard group. 0: nothing; 1: optimizer state; 2:
  // also gradients; 3: also weights.
  int zero = 0;
  DType precision = DType::F32;
  bool reduce_in_bf16 = false;  // gradients are sent as bf16; sums are rounded to bf16
  bool tied = false;            // the head also reads the embedding's bucket
  // The backward runs in two halves (zero-bubble). Gradients then stay unsharded until the end of
  // the step even with ZeRO 2 and 3, because a layer's gradients are complete only then.
  bool halved_backward = false;
  // Owned gradients are stored in host memory; only those of one or two layers are on the device.
  // Not with halved_backward.
  bool offload_gradients = false;
  // fp8 copies of the weights are kept between their uses, unless weights are sharded.
  bool keep_fp8_weights = true;
  // Matrices that fp8 matmuls read may be stored unrounded (Sharding::is_unrounded).
  bool unrounded_fp8_weights = false;
};

// Weights and gradients of a rank: one mechanism for ZeRO 0 to 3 and hybrid sharding. The stages
// differ in what is sharded and for how long a bucket is gathered.
//
// The ranks of a bucket's shard group hold one copy of it, one shard each; the ranks of its replica
// group own the same shard (DataGroups). Shards have equal size, in whole cache lines; the last one
// is padded. Gradients are reduced while earlier layers compute. Weights are gathered one layer
// ahead and dropped after use.
class Sharding final : public BucketHooks {
 public:
  // The groups must outlive it.
  Sharding(Backend& backend, Arena& arena, const ParameterSet& set, const Groups& groups,
           const ShardingOptions& options);
  // Waits for gathers into memory that is freed next. Does not wait during stack unwinding, because
  // other ranks may be gone.
  ~Sharding() override;
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  const ParameterStore& store() const { return store_; }
  const ParameterSet& set() const { return *set_; }
  const Groups& groups() const { return *groups_; }
  Communicator& shard(int bucket) const { return (*groups_)[data_of(bucket).shard]; }
  Communicator& replica(int bucket) const { return (*groups_)[data_of(bucket).replica]; }
  // The distinct data groups of the buckets, and the index of a bucket's groups among them.
  const std::vector<DataGroups>& data_groups() const { return data_groups_; }
  std::size_t data_group(int bucket) const;

  // The elements [begin, end) of the set's numbering that this rank updates; may be empty.
  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };
  Range owned(int bucket) const { return owned_by(bucket, shard(bucket).rank()); }
  Range owned_by(int bucket, int shard_rank) const;  // by another rank of its shard group
  std::int64_t shard_elements(int bucket) const { return shard_sizes_[bucket]; }
  Tensor owned_weights(int bucket) const;  // (owned size)
  // The weights of a bucket are stored in accumulator precision, and not in that of the run: they
  // are wide (Parameter::wide), or fp8 matmuls read copies of them in fp8. The latter are their own
  // master copy, if a rank owns the whole bucket.
  bool is_unrounded(int bucket) const;
  bool trained(int bucket) const { return set_->buckets()[bucket].trained; }
  // (owned size), in accumulator precision; in host memory if gradients are offloaded. Only of a
  // bucket that is trained.
  Tensor owned_gradients(int bucket) const;
  // The owned gradients of the buckets with these data groups, in as few contiguous tensors as
  // possible, without copies that another rank counts (Parameter::counted).
  std::vector<Tensor> counted_gradients(std::size_t data_group) const;
  GradientOffload* offload() { return offload_ ? &*offload_ : nullptr; }

  // All memory of this kind: buckets or their shards, one after the other. gradients() has those of
  // the buckets that are trained, and is empty if none is; unrounded_weights() has those of the
  // buckets that weights() has not.
  Tensor weights() const { return weights_; }
  Tensor unrounded_weights() const { return unrounded_weights_; }
  Tensor gradients() const { return gradients_; }
  // The elements of a bucket whose weights are stored on this rank: the owned ones with ZeRO 3,
  // otherwise all.
  Range stored_weights(int bucket) const;
  // The memory of stored elements, in accumulator precision if is_unrounded().
  Tensor weights_at(int bucket, Range range) const;

  // Sets all memory to zero, including padding, which is never written later. Registers the memory
  // with the groups.
  void zero_state();

  // Whether a micro-batch's gradients overwrite the buffer instead of being added to it.
  bool overwrites(bool first) const { return first || !whole_gradients_; }
  // Whether a micro-batch causes no transfers, neither between ranks nor to the host.
  bool has_no_transfers(bool first, bool last) const;
  // Call after the last micro-batch. Afterwards, owned gradients are summed over all data ranks.
  void finish_gradients();
  // Sets a function that updates owned weights late. It is called before a bucket's weights are
  // read, and with the number of buckets before all weights are read. Empty: no late updates.
  void set_late_update(std::function<void(int bucket)> update) { late_update_ = std::move(update); }
  // Call after the owned weights have changed (or a late update is pending). The copies on other
  // ranks are updated by bucket, when they are needed.
  void weights_changed();
  // Finishes late updates and waits for all gathers.
  void finish_weights();

  void need_weights(int bucket) override;
  void prefetch_weights(int bucket) override {
    if (zero_ == 3) gather(bucket);
  }
  void done_with_weights(int bucket) override;
  void need_gradients(int bucket, bool first) override;
  void done_with_gradients(int bucket, bool first, bool last) override;

 private:
  // A buffer for one unsharded bucket at a time.
  struct Slot {
    std::int64_t elements = 0;
    Communicator* shard = nullptr;  // shard group of all buckets that use this slot
    bool trained = true;            // whether they are trained
    DType dtype = DType::F32;       // of their weights
    Tensor weights, gradients;
    int bucket = -1;  // whose weights are in it, or being gathered into it
    bool busy = false;
    Communicator::Work gathering;
    Backend::Transfer to_host;  // of its gradients
  };
  static constexpr std::size_t kInFlight = 2;  // reductions at a time
  static_assert(kInFlight <= GradientOffload::kInFlight);
  // A reduction in flight: a reduce-scatter of a bucket's gradients, or the all-reduce of owned
  // gradients over the replicas that follows it.
  struct Reduction {
    int bucket = 0;
    bool scattering = false;           // reduce-scatter in the shard group; else over the replicas
    bool first = false, last = false;  // whether it is of the step's first or last micro-batch
    Tensor sum;                        // the buffer that is reduced
    Communicator::Work work;
  };

  void allocate(Arena& arena);
  void allocate_weights(Arena& arena);
  void allocate_slots(Arena& arena);
  void register_memory();
  void find_accumulated();
  // Calls f(first, count) for each contiguous range of the owned elements of a bucket, without the
  // parameters that are left out. `first` is relative to the owned elements.
  void for_each_owned_range(int bucket, bool (*leave_out)(const Parameter&),
                            const std::function<void(std::int64_t, std::int64_t)>& f) const;
  void apply_late_update(int bucket) {
    if (late_update_) late_update_(bucket);
  }
  const DataGroups& data_of(int bucket) const { return set_->buckets()[bucket].data; }
  std::int64_t whole_elements(int bucket) const {  // with padding
    return shard_elements(bucket) * shard(bucket).size();
  }
  // All weights of a bucket that are stored on this rank, with padding.
  Tensor stored_memory(int bucket) const;
  void find_slots();
  Slot& slot_of(int bucket) { return slots_[slot_of_[bucket]]; }
  Tensor own_shard(int bucket, const Tensor& whole) const;
  Tensor whole_gradients(int bucket) const;  // with whole_gradients_
  void gather(int bucket);
  void zero_accumulated(int bucket);
  Tensor to_wire(const Tensor& x);
  void start_scatter(int bucket, bool first, bool last);
  void start_replicate(int bucket);
  Tensor device_gradients(int bucket);  // the owned ones; with offload, in the bucket's slot
  void store_sum(const Reduction& done, Tensor owned);
  void send_to_host(int bucket, bool last);
  void finish_oldest();
  void finish_reductions_of(Slot& slot);

  Backend* backend_;
  const ParameterSet* set_;
  const Groups* groups_;
  ShardingOptions options_;
  std::vector<DataGroups> data_groups_;
  int zero_;
  bool whole_gradients_;  // gradients are stored unsharded
  ParameterStore store_;
  int buckets_;
  std::vector<std::int64_t> shard_sizes_;  // elements of a shard, by bucket
  // The offsets of each bucket, and the end: of its shard, and of the whole bucket.
  struct Offsets {
    std::vector<std::int64_t> sharded, whole;
    void add(std::int64_t shard, int ranks);  // a bucket with shards of this size
    std::int64_t end(bool is_whole) const { return is_whole ? whole.back() : sharded.back(); }
  };
  Offsets weight_offsets_, unrounded_offsets_, gradient_offsets_;
  Tensor weights_;  // whole buckets (zero < 3) or shards
  Tensor unrounded_weights_;
  Tensor gradients_;  // whole buckets or shards
  std::optional<GradientOffload> offload_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> slot_of_;  // by bucket
  Tensor incoming_;                   // (largest shard): a bf16 sum, converted before it is added
  std::array<Tensor, 2> wire_;        // (largest bucket), bf16
  std::size_t next_wire_ = 0;
  std::vector<Reduction> reductions_;  // oldest first
  // By bucket: elements [begin, end) whose gradients are accumulated, not overwritten by a matmul;
  // with the padding between them.
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> accumulated_;
  std::function<void(int bucket)> late_update_;
  std::vector<std::shared_ptr<void>> registered_;  // memory registered with the groups
  std::vector<Communicator::Work> gathering_;      // by bucket: gather after a step (zero 1, 2)
};

}  // namespace kintsugi
