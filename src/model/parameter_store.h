#pragma once

#include <vector>

#include "model/parameter_set.h"
#include "tensor/arena.h"

namespace kintsugi {

// Where the weights and gradients of a model lie, bucket by bucket. Layers ask at every use: where
// a bucket is sharded, its memory comes and goes.
class ParameterStore {
 public:
  // Without memory yet.
  ParameterStore(const ParameterSet& set, DType dtype);
  // With memory for all of it, side by side. Generation and scoring need no gradients.
  ParameterStore(const ParameterSet& set, Arena& arena, DType dtype, bool with_gradients);

  // `flat` holds the bucket's elements in the set's order; empty: not there now.
  void place_weights(int bucket, Tensor flat) { places_[at(bucket)].weights = flat; }
  void place_gradients(int bucket, Tensor flat) { places_[at(bucket)].gradients = flat; }
  Tensor bucket_weights(int bucket) const { return places_[at(bucket)].weights; }
  Tensor bucket_gradients(int bucket) const { return places_[at(bucket)].gradients; }

  const ParameterSet& set() const { return *set_; }
  DType dtype() const { return dtype_; }
  // (buffer_elements), where the store was made with memory.
  Tensor weights() const { return weights_; }
  Tensor gradients() const { return gradients_; }  // accumulator precision
  Tensor weight(int index) const { return weight(index, (*set_)[index].shape); }
  Tensor gradient(int index) const { return gradient(index, (*set_)[index].shape); }
  // Several packed parameters as one tensor of the given shape, starting at `first`.
  Tensor weight(int first, Shape shape) const;
  Tensor gradient(int first, Shape shape) const;

 private:
  struct Place {
    Tensor weights, gradients;
  };
  static std::size_t at(int bucket) { return static_cast<std::size_t>(bucket); }
  Tensor slice(Tensor flat, int index, Shape shape) const;
  const ParameterSet* set_;
  DType dtype_;
  Tensor weights_;
  Tensor gradients_;
  std::vector<Place> places_;
};

}  // namespace kintsugi
