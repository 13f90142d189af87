#pragma once

#include <cstdint>
#include <string_view>

#include "model/config.h"
#include "model/layers/norm.h"
#include "tensor/arena.h"

namespace kintsugi {

// What a block forgets after its forward and rebuilds in its backward. (Attention's scores are
// never kept.) Selective: the norms' outputs and the MLP's activation, which cost no matrix product
// to rebuild. Full: everything but the block's input.
enum class Recompute : std::uint8_t { None, Selective, Full };
std::string_view to_string(Recompute recompute);
Recompute parse_recompute(std::string_view text);

// Of one pass through a rank's blocks. With sequence parallelism a rank has only an equal part of
// the rows between the matrices.
struct PassSize {
  std::int64_t sequences = 1;
  std::int64_t length = 0;
  int row_parts = 1;
  std::int64_t tokens() const { return sequences * length; }
  std::int64_t rows() const { return tokens() / row_parts; }
};

// Everything a block computes on its way forward, for one micro-batch. Fields that are recomputed
// point to memory that all blocks of a rank share. Heads and MLP columns are this rank's.
struct BlockStash {
  Tensor input;  // (rows, hidden)
  NormStatistics norm1;
  Tensor normed1;  // (rows, hidden)
  Tensor qkv;      // (tokens, qkv_rows): rotated in place unless q and k are normed
  Tensor
      qk_normed;  // (tokens, (heads + kv_heads) * head_dim), with qk_norm only: normed and rotated
  Tensor q_rstd, k_rstd;  // (tokens * heads), (tokens * kv_heads)
  Tensor attended;        // (tokens, heads * head_dim)
  Tensor log_sum_exp;     // (sequences, heads, length)
  Tensor middle;          // (rows, hidden): input + attention
  NormStatistics norm2;
  Tensor normed2;    // (rows, hidden)
  Tensor up;         // (tokens, ffn or 2 ffn): before the activation
  Tensor activated;  // (tokens, ffn)
  // The backward makes `activated` from `up` again; then the forward makes it from `up` as well,
  // not from the product before it was rounded, so that recomputing changes no bit.
  bool activation_rebuilt = false;
};

// `config` is the rank's local one here and below.
// Memory for the fields that `recompute` drops, of passes up to `size`: one for all blocks.
BlockStash allocate_shared_stash(Arena& arena, const ModelConfig& config, DType dtype,
                                 const PassSize& size, Recompute recompute);
// Memory for one block's other fields; those that `recompute` drops are taken from `shared`.
// Without its input where that lies elsewhere.
BlockStash allocate_stash(Arena& arena, const ModelConfig& config, DType dtype,
                          const PassSize& size, Recompute recompute, const BlockStash& shared,
                          bool with_input);
// The same memory seen as a stash of fewer tokens.
BlockStash resize_stash(BlockStash stash, const ModelConfig& config, const PassSize& size);

// What a block works with, shared by all blocks of a rank.
struct BlockWorkspace {
  Tensor branch;       // (tokens, hidden): a branch's output before dropout, and its gradient
  Tensor own_branch;   // (rows, hidden) of it; branch itself unless rows are split
  Tensor gathered;     // (tokens, hidden): a norm's output of all ranks, if rows are split
  Tensor dnormed;      // (tokens, hidden)
  Tensor own_dnormed;  // (rows, hidden) of it; dnormed itself unless rows are split
  Tensor dqkv;         // (tokens, qkv_rows)
  Tensor dattended;    // (tokens, heads * head_dim)
  Tensor dup;          // (tokens, ffn or 2 ffn)
  Tensor dactivated;   // (tokens, ffn), with SwiGLU only
  // Gradients of the branches' outputs, kept for a second half of the backward; else empty.
  Tensor kept_attention, kept_mlp;  // (rows, hidden)
};
BlockWorkspace allocate_workspace(Arena& arena, const ModelConfig& config, DType dtype,
                                  const PassSize& size, bool training);
// The same, with memory of its own for what the second half of one block's backward reads.
BlockWorkspace allocate_kept(Arena& arena, const ModelConfig& config, DType dtype,
                             const PassSize& size, BlockWorkspace workspace);
BlockWorkspace resize_workspace(const BlockWorkspace& workspace, const PassSize& size);

}  // namespace kintsugi
