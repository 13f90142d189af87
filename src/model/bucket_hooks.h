#pragma once

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
};

}  // namespace kintsugi
