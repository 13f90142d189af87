#include "model/layers/head.h"

#include <algorithm>

namespace kintsugi {

Head::Head(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
           std::int64_t max_tokens, std::int64_t chunk_tokens, bool training)
    : backend_(&backend),
      store_(&store),
      norm_(backend, store, config.traits().norm, config.norm_eps,
            outer_names(config).final_norm_weight, outer_names(config).final_norm_bias) {
  const OuterNames names = outer_names(config);
  weight_ = store.set().index(names.head.empty() ? names.embedding : names.head);
  const DType dtype = store.dtype(), wide = accumulator_of(dtype);
  normed_ = arena.allocate(Region::Activations, "final norm output", dtype,
                           {max_tokens, config.hidden_size});
  if (training)
    dnormed_ = arena.allocate(Region::Workspace, "gradient of final norm", dtype,
                              {max_tokens, config.hidden_size});
  // Rows start at multiples of 64 elements whatever the vocabulary: 50257 columns would leave every
  // row unaligned.
  const std::int64_t padded = (config.vocab_size + 63) / 64 * 64;
  logits_ = arena
                .allocate(Region::Workspace, "logits chunk", dtype,
                          {std::min(chunk_tokens, max_tokens), padded})
                .part(1, 0, config.vocab_size);
  if (config.traits().norm == NormKind::Layer)
    statistics_.mean = arena.allocate(Region::Activations, "norm statistics", wide, {max_tokens});
  statistics_.rstd = arena.allocate(Region::Activations, "norm statistics", wide, {max_tokens});
}

std::int64_t Head::default_chunk(std::int64_t elements, std::int64_t vocabulary,
                                 std::int64_t max_tokens) {
  const std::int64_t most = std::max<std::int64_t>(128, elements / vocabulary);
  const std::int64_t chunks = (max_tokens + most - 1) / most;  // of equal size, in multiples of 128
  return std::min(max_tokens, ((max_tokens + chunks - 1) / chunks + 127) / 128 * 128);
}

void Head::forward(Tensor losses, Tensor gradient, Tensor x, const MicroBatch& batch,
                   double gradient_scale) const {
  const std::int64_t tokens = x.extent(0), chunk = logits_.extent(0);
  const Tensor weight = store_->weight(weight_), normed = normed_.rows(0, tokens);
  norm_.forward(normed, statistics_, x);
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    const Tensor logits = logits_.rows(0, count), rows = normed.rows(first, count);
    backend_->matmul(logits, rows, weight, {.transpose_b = true});
    backend_->cross_entropy(losses.rows(first, count), logits, batch.targets.rows(first, count),
                            gradient_scale);
    if (gradient_scale == 0) continue;
    backend_->matmul(dnormed_.rows(first, count), logits, weight);
    backend_->matmul(store_->gradient(weight_), logits, rows,
                     {.transpose_a = true, .accumulate = !batch.first || first > 0});
  }
  if (gradient_scale != 0) norm_.backward(gradient, dnormed_.rows(0, tokens), x, statistics_);
}

Tensor Head::logits(Tensor x) const {
  const Tensor normed = normed_.rows(0, x.extent(0)), logits = logits_.rows(0, x.extent(0));
  norm_.forward(normed, statistics_, x);
  backend_->matmul(logits, normed, store_->weight(weight_), {.transpose_b = true});
  return logits;
}

}  // namespace kintsugi
