#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "model/parameter_set.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace kintsugi {

// A matrix in fp8, both as it is stored and transposed; or a stack of them (Backend::quantize).
struct QuantizedWeight {
  Quantized rows, columns;
  Maxima maxima;      // only if it is not kept and its rows have scales
  bool kept = false;  // false: both use one buffer, which other matrices use too
};

// The device memory of the weights and gradients, by bucket. Layers look tensors up at every use,
// because the memory of a ZeRO-sharded bucket changes during a step.
class ParameterStore {
 public:
  // Allocates no memory: set_weights() and set_gradients() provide it.
  ParameterStore(const ParameterSet& set, DType dtype);
  // Allocates all buckets contiguously, but those that are wide (Parameter::wide). Generation and
  // scoring need no gradients.
  ParameterStore(const ParameterSet& set, Arena& arena, DType dtype, bool with_gradients);
  // Allocates the fp8 copies of all matrices that fp8 matmuls read: of each, or one buffer for all,
  // if weights are in memory only while they are used. After set_weights().
  void allocate_quantized(Arena& arena, bool one_buffer);

  // `flat` holds the bucket's elements in the order of the set; empty: not in memory now.
  void set_weights(int bucket, Tensor flat) { memory_[at(bucket)].weights = flat; }
  void set_gradients(int bucket, Tensor flat) { memory_[at(bucket)].gradients = flat; }
  Tensor bucket_weights(int bucket) const { return memory_[at(bucket)].weights; }
  Tensor bucket_gradients(int bucket) const { return memory_[at(bucket)].gradients; }

  const ParameterSet& set() const { return *set_; }
  DType dtype() const { return dtype_; }
  // (buffer_elements); empty if the store was built without memory. The elements of wide buckets
  // are unused, unless this is accumulator precision.
  Tensor weights() const { return weights_; }
  Tensor gradients() const { return gradients_; }  // in accumulator precision
  Tensor weight(int index) const { return weight(index, (*set_)[index].shape); }
  Tensor gradient(int index) const { return gradient(index, (*set_)[index].shape); }
  // Several packed parameters as one tensor of the given shape; `first` is the first of them. The
  // gradient of a parameter that is not trained is empty.
  Tensor weight(int first, Shape shape) const;
  Tensor gradient(int first, Shape shape) const;
  // The weights are in accumulator precision: they are wide, or their fp8 copies are all that
  // layers read.
  bool is_unrounded(int index) const {
    const Tensor weights = bucket_weights((*set_)[index].bucket);
    return weights && weights.dtype() != dtype_;
  }
  // The memory of the matrix in fp8; the layer that reads it quantizes it.
  QuantizedWeight quantized(int first, Shape shape, bool one_scale) const;
  // The same memory for the matrix rounded to dtype(), which must be quantized again afterwards.
  Tensor rounded(int first, Shape shape) const;

 private:
  struct BucketMemory {
    Tensor weights, gradients;
  };
  static std::size_t at(int bucket) { return static_cast<std::size_t>(bucket); }
  const Tensor& quantized_memory(int first) const;
  Tensor view(Tensor flat, int index, Shape shape) const;
  const ParameterSet* set_;
  DType dtype_;
  Tensor weights_;
  Tensor gradients_;
  std::vector<BucketMemory> memory_;  // by bucket
  std::map<int, Tensor> quantized_;   // by matrix: bytes of `rows`, then of `columns`
  Tensor one_quantized_;
  std::map<int, Tensor> maxima_;  // with one_quantized_: (rows + columns), int32
};

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
