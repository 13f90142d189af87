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
#include "model/bucket_hooks.h"
#include "model/parameter_store.h"
#include "parallel/gradient_offload.h"

namespace kintsugi {

struct ShardingOptions {
  // What is cut among the ranks of a shard group. 0: nothing; 1: the optimizer's state; 2: and the
  // gradients; 3: and the weights.
  int zero = 0;
  DType precision = DType::F32;
  bool reduce_in_bf16 = false;  // gradients travel in half the bytes; sums round to bf16
  bool tied = false;            // the head reads the embedding's bucket, too
  // Backwards come in halves: gradients stay whole until the step's end even with ZeRO 2 and 3,
  // because a layer's are never complete at one moment before.
  bool halved_backward = false;
  // Owned gradients lie in host memory; on the device, those of a layer or two. Not with
  // halved_backward.
  bool offload_gradients = false;
};

// Weights and gradients of a rank, one mechanism for ZeRO 0 to 3 and hybrids: the stages differ in
// what is cut and for how long a bucket is whole.
//
// The ranks of a bucket's shard group hold one copy of it, cut into as many parts; its replica
// group joins the owners of the same part (DataGroups). The parts are equal and of whole cache
// lines, the last one padded. Sums of gradients travel while earlier layers compute; weights are
// gathered one layer ahead and dropped behind.
class Sharding final : public BucketHooks {
 public:
  // The groups must outlive it.
  Sharding(Backend& backend, Arena& arena, const ParameterSet& set, const Groups& groups,
           const ShardingOptions& options);
  // Waits for weights on their way into memory that goes next; not when an exception flies, because
  // then the others may be gone.
  ~Sharding() override;
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  const ParameterStore& store() const { return store_; }
  const ParameterSet& set() const { return *set_; }
  const Groups& groups() const { return *groups_; }
  Communicator& shard(int bucket) const { return (*groups_)[data_of(bucket).shard]; }
  Communicator& replica(int bucket) const { return (*groups_)[data_of(bucket).replica]; }
  // All that the buckets have, each once, and which of them a bucket's are.
  const std::vector<DataGroups>& data_groups() const { return data_groups_; }
  std::size_t data_group(int bucket) const;

  // The elements [begin, end) of the set's numbering that this rank updates; may be empty.
  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };
  Range owned(int bucket) const;
  std::int64_t part_elements(int bucket) const { return parts_[static_cast<std::size_t>(bucket)]; }
  // Whether one rank owns all of it: no bound between tensor ranks or between parts cuts it. The
  // answer is the same on all ranks. Parts are cut without regard to parameters, so ZeRO promises
  // this for few; whoever needs whole matrices must refuse the others.
  bool keeps_whole(const Parameter& parameter) const;
  Tensor owned_weights(int bucket) const;  // (owned size), in the run's precision
  // (owned size), in accumulator precision; in host memory if they are offloaded
  Tensor owned_gradients(int bucket) const;
  // Owned gradients of the buckets with the same data groups, in as few pieces as they lie in,
  // without those of copies that another rank counts.
  std::vector<Tensor> counted_gradient_pieces(std::size_t data_group) const;
  GradientOffload* offload() { return offload_ ? &*offload_ : nullptr; }

  // All memory of this kind, whole buckets or parts of them, one after the other.
  Tensor weights() const { return weights_; }
  Tensor gradients() const { return gradients_; }
  // Where the elements `range` of a bucket lie that are stored here: the owned ones, or all.
  Range stored_weights(int bucket) const;
  Tensor weights_at(int bucket, Range range) const;

  // Everything at zero, padding too, which nobody writes later; and the groups know the memory.
  void zero_state();

  // Whether a micro-batch's gradients replace what is there instead of adding to it.
  bool overwrites(bool first) const { return first || !whole_gradients_; }
  // Whether a micro-batch's pass moves nothing: neither between ranks nor to the host.
  bool is_idle_in(bool first, bool last) const;
  // After the last micro-batch: owned gradients are the sums over all data ranks.
  void finish_gradients();
  // Who changes owned weights late: is called before a bucket's are read, and with the number of
  // buckets before anybody looks at all of them. None: nobody does.
  void on_reading(std::function<void(int bucket)> update) { update_ = std::move(update); }
  // After owned weights changed, or will when they are read: everybody's copies follow, bucket by
  // bucket when they are needed.
  void weights_changed();
  // Waits for weights that are still on their way.
  void finish_weights();

  void need_weights(int bucket, int next) override;
  void done_with_weights(int bucket) override;
  void need_gradients(int bucket, bool first) override;
  void done_with_gradients(int bucket, bool first, bool last) override;

 private:
  // Memory in which one bucket at a time is whole.
  struct Slot {
    std::int64_t elements = 0;
    Communicator* shard = nullptr;  // of all buckets that come here
    Tensor weights, gradients;
    int bucket = -1;  // whose weights are in it, or on their way
    bool busy = false;
    Communicator::Work gathering;
    Backend::Transfer going;  // its gradients, to host memory
  };
  static constexpr std::size_t kInFlight = 2;  // sums under way at a time
  static_assert(kInFlight <= GradientOffload::kUnderWay);
  // A bucket's gradients on their way: summed into the owner's part, then over the replicas.
  struct Reduction {
    int bucket = 0;
    bool scattering = false;           // within the shard group; else over the replicas
    bool first = false, last = false;  // of the micro-batch it belongs to
    Tensor sum;                        // what travels
    Communicator::Work work;
  };

  void place(Arena& arena);
  void place_slots(Arena& arena);
  void register_memory();
  void find_added();
  // Runs of the owned elements of a bucket, without the parameters that are left out:
  // f(first within the owned ones, count).
  void for_each_owned_run(int bucket, bool (*leave_out)(const Parameter&),
                          const std::function<void(std::int64_t, std::int64_t)>& f) const;
  void bring_up_to_date(int bucket) {
    if (update_) update_(bucket);
  }
  const DataGroups& data_of(int bucket) const {
    return set_->buckets()[static_cast<std::size_t>(bucket)].data;
  }
  std::int64_t whole_elements(int bucket) const {  // with padding
    return part_elements(bucket) * shard(bucket).size();
  }
  void find_slots();
  Slot& slot_of(int bucket) { return slots_[slot_of_[static_cast<std::size_t>(bucket)]]; }
  Tensor part(int bucket, const Tensor& all_parts) const;  // this rank's piece of a row of parts
  void gather(int bucket);
  void zero_added(int bucket);
  Tensor to_wire(const Tensor& x);
  void start_scatter(int bucket, bool first, bool last);
  void start_replicate(int bucket);
  Tensor gradients_here(int bucket);  // owned, on the device while they are on their way
  void take_sum(const Reduction& done, Tensor mine);
  void send_gradients(int bucket, bool last);
  void finish_oldest();
  void finish_reductions_of(Slot& slot);

  Backend* backend_;
  const ParameterSet* set_;
  const Groups* groups_;
  ShardingOptions options_;
  std::vector<DataGroups> data_groups_;
  int zero_;
  bool whole_gradients_;  // all the time
  ParameterStore store_;
  int buckets_;
  std::vector<std::int64_t> parts_;    // elements of a part, by bucket
  std::vector<std::int64_t> offsets_;  // of a bucket's part in a row of all parts
  Tensor weights_;                     // whole buckets (zero < 3) or parts
  Tensor gradients_;                   // whole buckets or parts
  std::vector<std::int64_t> whole_offsets_;
  std::optional<GradientOffload> offload_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> slot_of_;  // by bucket
  Tensor incoming_;                   // (largest part): a sum that is widened before it is added
  std::array<Tensor, 2> wire_;        // (largest bucket), bf16
  std::size_t next_wire_ = 0;
  std::vector<Reduction> reductions_;  // oldest first; a few at most
  // By bucket, elements [begin, end) whose gradients are added to, and the padding between.
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> added_;
  std::function<void(int bucket)> update_;
  std::vector<std::shared_ptr<void>> registered_;  // with the groups
  std::vector<Communicator::Work> gathering_;      // weights on their way after a step (zero 1, 2)
};

}  // namespace kintsugi
