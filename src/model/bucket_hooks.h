#pragma once

#include <cstddef>
#include <vector>

namespace kintsugi {

// A stage calls these before and after it uses the weights or gradients of a bucket. Between need_*
// and done_with_*, the ParameterStore has the bucket's weights (or gradients) in memory; at other
// times it may not.
class BucketHooks {
 public:
  virtual ~BucketHooks() = default;
  virtual void need_weights(int bucket) = 0;
  // The weights of this bucket will be needed soon.
  virtual void prefetch_weights(int bucket) = 0;
  virtual void done_with_weights(int bucket) = 0;
  // Called before a micro-batch's first contribution to the bucket's gradients, and after its last.
  // `first` and `last`: whether it is the step's first or last micro-batch.
  virtual void need_gradients(int bucket, bool first) = 0;
  virtual void done_with_gradients(int bucket, bool first, bool last) = 0;

  // The same for all buckets of a layer. `next`: those of the layer that follows; may be empty.
  using Buckets = std::vector<int>;
  static inline const Buckets kNone = {};
  void need_all_weights(const Buckets& buckets, const Buckets& next = kNone) {
    for (const int bucket : buckets) need_weights(bucket);
    for (const int bucket : next) prefetch_weights(bucket);
  }
  void done_with_all_weights(const Buckets& buckets) {
    for (const int bucket : buckets) done_with_weights(bucket);
  }
  void need_all_gradients(const Buckets& buckets, bool first) {
    for (const int bucket : buckets) need_gradients(bucket, first);
  }
  void done_with_all_gradients(const Buckets& buckets, bool first, bool last) {
    for (const int bucket : buckets) done_with_gradients(bucket, first, last);
  }
};

}  // namespace kintsugi
