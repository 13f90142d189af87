#include "model/layers/attend.h"

namespace kintsugi {
namespace {

// (tokens, heads, dim) as (sequences, length, heads, dim), strides kept.
Tensor by_sequence(const Tensor& x, const LayerRun& run) { return x.split_first(run.batch.length); }

AttentionHeads by_sequence(const AttentionHeads& heads, const LayerRun& run) {
  return {by_sequence(heads.q, run), by_sequence(heads.k, run), by_sequence(heads.v, run)};
}

// (sequences, heads, length).
Tensor sums_of(const Tensor& log_sum_exp, const LayerRun& run) {
  return log_sum_exp.view({run.batch.sequences, log_sum_exp.extent(1), run.batch.length});
}

}  // namespace

void attend(const LayerRun& run, Tensor out, Tensor log_sum_exp, const AttentionHeads& heads,
            AttentionOptions options) {
  const auto [q, k, v] = by_sequence(heads, run);
  options.document_start = run.batch.document_start;
  const Tensor all = by_sequence(out, run), sums = sums_of(log_sum_exp, run);
  if (const ContextAttention* const context = run.context.attention)
    context->forward(all, sums, q, k, v, options.scale, options.document_start, options.window);
  else
    run.backend().attention_forward(all, sums, q, k, v, options);
}

void attend_backward(const LayerRun& run, const AttentionHeads& gradient, Tensor dout, Tensor out,
                     Tensor log_sum_exp, const AttentionHeads& heads, AttentionOptions options) {
  const auto [q, k, v] = by_sequence(heads, run);
  const auto [dq, dk, dv] = by_sequence(gradient, run);
  options.document_start = run.batch.document_start;
  const Tensor dall = by_sequence(dout, run), all = by_sequence(out, run),
               sums = sums_of(log_sum_exp, run);
  if (const ContextAttention* const context = run.context.attention)
    context->backward(dq, dk, dv, dall, all, sums, q, k, v, options.scale, options.document_start,
                      options.window);
  else
    run.backend().attention_backward(dq, dk, dv, dall, all, sums, q, k, v, options);
}

void attend_cached(const LayerRun& run, Tensor out, Tensor q, Tensor keys, Tensor values,
                   PagedAttentionOptions options) {
  const CachedTokens& cached = *run.batch.cached;
  options.pages = cached.pages;
  options.max_keys = cached.max_keys;
  for (const bool single : {true, false}) {
    options.tiles = single ? cached.single_tiles : cached.chunk_tiles;
    options.tile_tokens = single ? 1 : cached.chunk_tile_tokens;
    if (options.tiles)
      run.backend().paged_attention(out, q, keys.split_first(cached.page_tokens),
                                    values.split_first(cached.page_tokens), options);
  }
}

}  // namespace kintsugi
