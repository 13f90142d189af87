#pragma once

#include <cstdint>

namespace kintsugi {

enum class Pass : std::uint8_t { Forward, Backward };

// What a stage tells whoever looks after the memory of its parameters, bucket by bucket, in the
// order of its work. Between need and done, the bucket's weights (or gradients) lie in the
// ParameterStore; at other times they may not.
class BucketHooks {
 public:
  virtual ~BucketHooks() = default;
  virtual void need_weights(int bucket, Pass pass) = 0;
  virtual void done_with_weights(int bucket) = 0;
  // Before this micro-batch's first contribution to the bucket's gradients, and after its last.
  virtual void need_gradients(int bucket) = 0;
  virtual void done_with_gradients(int bucket) = 0;
};

}  // namespace kintsugi
