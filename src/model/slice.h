#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace kintsugi {

// The part of a model that one rank holds: some of its layers, and of their matrices the share of
// one of `tp` ranks.
struct ModelSlice {
  int tp = 1;
  int tp_rank = 0;
  bool sequence_parallel = false;  // the tp ranks also share the rows between the matrices
  std::vector<int> layers = {};    // rising
  bool embedding = true;
  bool head = true;
};
ModelSlice whole_model(const ModelConfig& config);

// Neighbouring tp ranks that hold the same key and value heads, because there are fewer of those
// than ranks.
int kv_copies(std::int64_t kv_heads, int tp);

// How tensor parallelism cuts a parameter: along one dimension, which may consist of several parts
// that are cut each by itself (GPT-2's q, k and v side by side).
struct TensorCut {
  int dimension = -1;  // -1: every rank has all of it
  int parts = 1;
  int ranks = 1;
  int copies = 1;  // neighbouring ranks that hold the same share

  Shape local(const Shape& global) const;
};

// Elements [here, here + count) of what a rank holds are elements [there, there + count) of the
// whole parameter.
struct CutRun {
  std::int64_t here = 0, there = 0, count = 0;
};
// Of elements [first, last) of a rank's share, in their order. What is missing is padding: the last
// rank's share of a dimension that does not divide evenly.
void for_each_run(const TensorCut& cut, const Shape& global, int rank, std::int64_t first,
                  std::int64_t last, const std::function<void(const CutRun&)>& use);

// Rows [begin, end) of dimension 0 that a rank holds of a parameter that is cut there in one part.
struct RowRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
RowRange rows_of(const TensorCut& cut, const Shape& global, int rank);

}  // namespace kintsugi
