#pragma once

#include "model/layers/attention.h"
#include "model/layers/mlp.h"

namespace kintsugi {

// One transformer block:  middle = input + Wo attention(norm1(input));  output = middle + Wd
// mlp(norm2(middle)).
class Block {
 public:
  Block(Backend& backend, const ParameterStore& store, const ModelConfig& config, int layer,
        const PositionTables& tables);

  // From stash.input to output, filling the stash.
  void forward(Tensor output, const BlockStash& stash, const BlockWorkspace& workspace,
               const MicroBatch& batch, KvCache* cache = nullptr) const;
  // `gradient` holds d loss / d output on entry and d loss / d input on return. What `recompute`
  // dropped is rebuilt first.
  void backward(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                const MicroBatch& batch, Recompute recompute) const;

 private:
  Block(Backend& backend, const ParameterStore& store, const ModelConfig& config, int layer,
        const PositionTables& tables, const BlockNames& names);
  // Everything up to the down projection.
  void forward_to_activation(const BlockStash& stash, const BlockWorkspace& workspace,
                             const MicroBatch& batch, KvCache* cache) const;
  // result = residual + dropout(linear(x))
  void add_branch(Tensor result, const Linear& linear, Tensor x, Tensor residual,
                  const BlockWorkspace& workspace, const MicroBatch& batch,
                  std::uint64_t site) const;
  // The gradient of a branch's output before its dropout.
  Tensor branch_gradient(Tensor gradient, const BlockWorkspace& workspace, const MicroBatch& batch,
                         std::uint64_t site) const;

  Backend* backend_;
  std::uint64_t attention_site_, mlp_site_;  // places of the two dropouts
  Norm norm1_;
  Attention attention_;
  Linear attention_out_;
  Norm norm2_;
  Mlp mlp_;
  Linear mlp_down_;
};

}  // namespace kintsugi
