#pragma once

#include "model/layers/attention.h"
#include "model/layers/mlp.h"
#include "model/layers/tensor_group.h"

namespace kintsugi {

// What all blocks of a rank have in common.
struct BlockContext {
  Backend* backend;
  const ParameterStore* store;
  ModelConfig local;  // this rank's heads and MLP columns
  TensorGroup tensor;
  PositionTables tables;
  const RingAttention* ring = nullptr;
};

// One transformer block:  middle = input + Wo attention(norm1(input));  output = middle + Wd
// mlp(norm2(middle)).
class Block {
 public:
  Block(const BlockContext& context, int layer);

  // From stash.input to output, filling the stash.
  void forward(Tensor output, const BlockStash& stash, const BlockWorkspace& workspace,
               const MicroBatch& batch, KvCache* cache = nullptr) const;
  // `gradient` holds d loss / d output on entry and d loss / d input on return. What `recompute`
  // dropped is rebuilt first.
  void backward(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                const MicroBatch& batch, Recompute recompute) const;
  // The same in two halves, of which the second can come any time later, with a workspace that kept
  // what it needs. The norms' own gradients belong to the first.
  void backward_input(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                      const MicroBatch& batch, Recompute recompute) const;
  void backward_weight(const BlockStash& stash, const BlockWorkspace& workspace,
                       const MicroBatch& batch, Recompute recompute) const;

 private:
  enum class Weights : bool { Later, Now };

  Block(const BlockContext& context, int layer, const BlockNames& names);
  // Everything up to the down projection.
  void forward_to_activation(const BlockStash& stash, const BlockWorkspace& workspace,
                             const MicroBatch& batch, KvCache* cache) const;
  void rebuild(const BlockStash& stash, const BlockWorkspace& workspace, const MicroBatch& batch,
               Recompute recompute) const;
  void backward_mlp(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                    const MicroBatch& batch, Weights weights) const;
  void backward_attention(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                          const MicroBatch& batch, Weights weights) const;
  // result = residual + dropout(linear(x))
  void add_branch(Tensor result, const Linear& linear, Tensor x, Tensor residual,
                  const BlockWorkspace& workspace, const MicroBatch& batch,
                  std::uint64_t site) const;
  // The gradient of a branch's output before its dropout, in `kept` if there is one.
  Tensor branch_gradient(Tensor gradient, Tensor kept, const BlockWorkspace& workspace,
                         const MicroBatch& batch, std::uint64_t site) const;

  Backend* backend_;
  TensorGroup tensor_;
  std::uint64_t attention_site_, mlp_site_;  // places of the two dropouts
  Norm norm1_;
  Attention attention_;
  Linear attention_out_;
  Norm norm2_;
  Mlp mlp_;
  Linear mlp_down_;
};

}  // namespace kintsugi
