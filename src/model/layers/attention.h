#pragma once

#include <optional>

#include "model/layers/linear.h"
#include "model/layers/norm.h"
#include "model/layers/ring_attention.h"
#include "model/micro_batch.h"
#include "model/stash.h"

namespace kintsugi {

// Keys and values of the tokens seen so far, for generation: one sequence.
struct KvCache {
  Tensor keys;    // (1, capacity, kv_heads, head_dim)
  Tensor values;  // the same
  std::int64_t length = 0;
};

// Constant tables that attention layers share.
struct PositionTables {
  Tensor rope;    // (positions, head_dim), accumulator precision
  Tensor slopes;  // (heads of this rank), fp32
};
PositionTables allocate_position_tables(Arena& arena, const ModelConfig& local, DType dtype,
                                        std::int64_t positions);
// `config` is the whole model's; this rank's heads are those from `first_head` on.
void fill_position_tables(Backend& backend, const PositionTables& tables, const ModelConfig& config,
                          std::int64_t first_head);

// Projections to q, k, v, per-head norms, rotation, attention; and back, on this rank's heads. The
// output projection with the residual belongs to the block.
class Attention {
 public:
  // `ring`, if any: sequences are cut among its ranks.
  Attention(Backend& backend, const ParameterStore& store, const ModelConfig& local,
            const BlockNames& names, const PositionTables& tables, const RingAttention* ring);

  // From x (tokens, hidden) to stash.attended. With a cache, the new tokens are appended to it and
  // see all of it.
  void forward(Tensor x, const BlockStash& stash, const MicroBatch& batch,
               KvCache* cache = nullptr) const;
  // From the gradient of stash.attended to that of x; workspace.dqkv holds what backward_weight
  // needs.
  void backward_input(Tensor dnormed, const BlockStash& stash, const BlockWorkspace& workspace,
                      const MicroBatch& batch) const;
  void backward_weight(Tensor x, const BlockWorkspace& workspace, bool accumulate) const;

 private:
  struct Heads {
    Tensor q, k, v;  // (tokens, heads, head_dim) views
  };
  Heads split(Tensor qkv) const;
  // Where q and k lie when attention reads them: in qkv, or in their normed copy.
  Heads attention_inputs(const BlockStash& stash) const;
  double scale() const;
  AttentionOptions options(const MicroBatch& batch) const;

  Backend* backend_;
  ModelConfig config_;
  PositionTables tables_;
  const RingAttention* ring_;
  Linear projection_;
  std::optional<Norm> q_norm_, k_norm_;
};

}  // namespace kintsugi
