#pragma once

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "model/block.h"

namespace kintsugi {

// A block's memory for one micro-batch between forward and backward, by Saved handle.
struct BlockMemory {
  std::vector<Tensor> saved;
  Tensor input;  // (rows, hidden), if it is kept here
};

// What the second half of a block's backward reads, kept since the first.
struct KeptMemory {
  std::vector<Tensor> workspace;  // by Workspace handle; the others are shared
  std::vector<Tensor> gradients;  // (rows, hidden) by branch: of the sublayers' outputs
};

// Memory that the blocks of a rank use in turns: workspace, and saved tensors that are dropped and
// recomputed. Without training, all saved tensors. Blocks may differ: the largest is taken.
class SharedMemory {
 public:
  SharedMemory(Arena& arena, const std::vector<Declaration>& blocks, DType dtype,
               const BatchSize& size, Recompute recompute, bool training);

  // Of one block, with memory of its own from the arena where it needs it.
  BlockMemory allocate_block(Arena& arena, const Declaration& block, Recompute recompute) const;
  // The same, all of it its own.
  BlockMemory allocate_own(Arena& arena, const Declaration& layer) const;
  std::vector<Tensor> workspace(const Declaration& block) const;
  KeptMemory allocate_kept(Arena& arena, const Declaration& block, int branches,
                           std::int64_t hidden) const;

 private:
  // Which tensor of its label in a block.
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
