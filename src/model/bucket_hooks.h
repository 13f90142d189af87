#pragma once

#include <cstddef>
#include <vector>

namespace kintsugi {

// What a stage tells whoever looks after the memory of its parameters, bucket by bucket, in the
// order of its work. Between need and done, the bucket's weights (or gradients) lie in the
// ParameterStore; at other times they may not.
class BucketHooks {
 public:
  virtual ~BucketHooks() = default;
  // `next`: whose weights will be asked for after these; -1: nobody knows.
  virtual void need_weights(int bucket, int next) = 0;
  virtual void done_with_weights(int bucket) = 0;
  // Before a micro-batch's first contribution to the bucket's gradients, and after its last. First
  // and last: of the step.
  virtual void need_gradients(int bucket, bool first) = 0;
  virtual void done_with_gradients(int bucket, bool first, bool last) = 0;

  // The same of all buckets of a layer.
  using Buckets = std::vector<int>;
  static inline const Buckets kNone = {};
  void need_all_weights(const Buckets& buckets, const Buckets& next = kNone) {
    for (std::size_t i = 0; i < buckets.size(); ++i)
      need_weights(buckets[i], i < next.size() ? next[i] : -1);
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
