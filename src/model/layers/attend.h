#pragma once

#include "model/layers/layer_run.h"

namespace kintsugi {

// Attention as layers use it: on the tokens of a micro-batch, with context parallelism
// (ContextAttention), or on the tokens of a step of generation.

// Queries, keys and values, or their gradients: (tokens, heads, dim) views.
struct AttentionHeads {
  Tensor q, k, v;
};

// log_sum_exp (tokens, heads) is private to the two operations. Of the options, they set the
// documents.
void attend(const LayerRun& run, Tensor out, Tensor log_sum_exp, const AttentionHeads& heads,
            AttentionOptions options);
void attend_backward(const LayerRun& run, const AttentionHeads& gradient, Tensor dout, Tensor out,
                     Tensor log_sum_exp, const AttentionHeads& heads, AttentionOptions options);

// With batch.cached: attends to `keys` and `values` (rows of a cache, kv_heads, dim), which have
// those of the batch already. Of the options, it sets the tokens.
void attend_cached(const LayerRun& run, Tensor out, Tensor q, Tensor keys, Tensor values,
                   PagedAttentionOptions options);

}  // namespace kintsugi
