#pragma once

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "model/block.h"

namespace kintsugi {

// What a block keeps of one micro-batch between forward and backward.
struct BlockMemory {
  std::vector<Tensor> saved;  // by Saved handle
  Tensor input;               // (rows, hidden), if the block keeps its own copy
};

// What a block keeps between the two halves of a backward (backward_input and backward_weight).
struct KeptMemory {
  std::vector<Tensor> workspace;  // by Workspace handle; private where read_by_weights, else shared
  std::vector<Tensor> gradients;  // (rows, hidden), by branch: of the sublayer's output
};

// Memory that all blocks of a rank share: workspace, and saved tensors that are dropped and
// recomputed. Without training, all saved tensors. If blocks differ, the largest size is allocated.
class SharedMemory {
 public:
  SharedMemory(Arena& arena, const std::vector<Declaration>& blocks, DType dtype,
               const BatchSize& size, Recompute recompute, bool training);

  // Memory of one block: tensors that cannot be shared are allocated from the arena.
  BlockMemory allocate_block(Arena& arena, const Declaration& block, Recompute recompute) const;
  // Memory of one layer, all of it allocated from the arena.
  BlockMemory allocate_own(Arena& arena, const Declaration& layer) const;
  std::vector<Tensor> workspace(const Declaration& block) const;
  KeptMemory allocate_kept(Arena& arena, const Declaration& block, int branches,
                           std::int64_t hidden) const;

 private:
  // A tensor's label and its index among the tensors of a block with that label.
  using Key = std::pair<std::string_view, int>;
  template <class F>
  static void for_each(const std::vector<TensorSpec>& specs, bool sharing, const F& f);
  bool shares(const TensorSpec& saved, Recompute recompute) const;
  DType dtype_of(const TensorSpec& spec) const;
  Shape shape_of(const TensorSpec& spec) const;
  Tensor allocate(Arena& arena, const TensorSpec& spec) const;
  Tensor view(const Tensor& memory, const TensorSpec& spec) const;

  DType dtype_;
  BatchSize size_;
  bool training_;
  std::map<Key, Tensor> saved_, workspace_;
};

}  // namespace kintsugi
