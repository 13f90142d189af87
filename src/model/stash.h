#pragma once

#include <cstdint>
#include <string_view>

#include "model/config.h"
#include "model/layers/norm.h"
#include "tensor/arena.h"

namespace kintsugi {

// What a block forgets after its forward and rebuilds in its backward.
// Selective: the norms' outputs and the MLP's activation, which cost no matrix product to rebuild.
// Full: everything but the block's input.
enum class Recompute : std::uint8_t { None, Selective, Full };
std::string_view to_string(Recompute recompute);
Recompute parse_recompute(std::string_view text);

// Everything a block computes on its way forward, for one micro-batch. Fields that are recomputed
// point to memory that all blocks of a stage share.
struct BlockStash {
  Tensor input;  // (tokens, hidden)
  NormStatistics norm1;
  Tensor normed1;  // (tokens, hidden)
  Tensor qkv;      // (tokens, qkv_rows): rotated in place unless q and k are normed
  Tensor
      qk_normed;  // (tokens, (heads + kv_heads) * head_dim), with qk_norm only: normed and rotated
  Tensor q_rstd, k_rstd;  // (tokens * heads), (tokens * kv_heads)
  Tensor attended;        // (tokens, heads * head_dim)
  Tensor log_sum_exp;     // (sequences, heads, length)
  Tensor middle;          // (tokens, hidden): input + attention
  NormStatistics norm2;
  Tensor normed2;    // (tokens, hidden)
  Tensor up;         // (tokens, ffn or 2 ffn): before the activation
  Tensor activated;  // (tokens, ffn)
  // The backward makes `activated` from `up` again; then the forward makes it from `up` as well,
  // not from the product before it was rounded, so that recomputing changes no bit.
  bool activation_rebuilt = false;
};

// Memory for the fields that `recompute` drops, of up to sequences x length tokens: one for all
// blocks.
BlockStash allocate_shared_stash(Arena& arena, const ModelConfig& config, DType dtype,
                                 std::int64_t sequences, std::int64_t length, Recompute recompute);
// Memory for one block's other fields; those that `recompute` drops are taken from `shared`.
BlockStash allocate_stash(Arena& arena, const ModelConfig& config, DType dtype,
                          std::int64_t sequences, std::int64_t length, Recompute recompute,
                          const BlockStash& shared);
// The same memory seen as a stash of fewer tokens.
BlockStash resize_stash(BlockStash stash, const ModelConfig& config, std::int64_t sequences,
                        std::int64_t length);

// Gradients of activations while one block runs backward; shared by all blocks of a stage.
struct BlockWorkspace {
  Tensor branch;      // (tokens, hidden): a branch's output before dropout, and its gradient
  Tensor dnormed;     // (tokens, hidden)
  Tensor dqkv;        // (tokens, qkv_rows)
  Tensor dattended;   // (tokens, heads * head_dim)
  Tensor dup;         // (tokens, ffn or 2 ffn)
  Tensor dactivated;  // (tokens, ffn), with SwiGLU only
};
BlockWorkspace allocate_workspace(Arena& arena, const ModelConfig& config, DType dtype,
                                  std::int64_t tokens, bool training);
BlockWorkspace resize_workspace(const BlockWorkspace& workspace, std::int64_t tokens);

}  // namespace kintsugi
