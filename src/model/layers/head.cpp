#include "model/layers/head.h"

#include <algorithm>

namespace kintsugi {

Head::Head(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
           const TensorGroup& tensor, const PassSize& size, std::int64_t chunk_tokens)
    : backend_(&backend),
      store_(&store),
      tensor_(tensor),
      norm_(backend, store, config.traits().norm, config.norm_eps,
            outer_names(config).final_norm_weight, outer_names(config).final_norm_bias) {
  const OuterNames names = outer_names(config);
  weight_ = store.set().index(names.head.empty() ? names.embedding : names.head);
  rows_ = store.set().rows(weight_);
  const DType dtype = store.dtype(), wide = accumulator_of(dtype);
  const std::int64_t chunk = std::min(chunk_tokens, size.tokens());
  // Rows start at multiples of 64 elements whatever the vocabulary: 50257 columns would leave every
  // row unaligned.
  const std::int64_t columns = store.set()[weight_].shape[0], padded = (columns + 63) / 64 * 64;
  logits_ = arena.allocate(Region::Workspace, "logits chunk", dtype, {chunk, padded})
                .part(1, 0, rows_.size());
  if (tensor_.is_split())
    partials_ =
        arena.allocate(Region::Communication, "cross-entropy", wide, {tensor_.size() * chunk * 3});
  const auto statistic = [&] {
    return arena.allocate(Region::Activations, "norm statistics", wide, {size.rows()});
  };
  if (config.traits().norm == NormKind::Layer) statistics_.mean = statistic();
  statistics_.rstd = statistic();
}

std::int64_t Head::default_chunk(std::int64_t elements, std::int64_t vocabulary,
                                 std::int64_t max_tokens) {
  const std::int64_t most = std::max<std::int64_t>(128, elements / vocabulary);
  const std::int64_t chunks = (max_tokens + most - 1) / most;  // of equal size, in multiples of 128
  return std::min(max_tokens, ((max_tokens + chunks - 1) / chunks + 127) / 128 * 128);
}

void Head::forward(Tensor losses, Tensor gradient, Tensor x, const MicroBatch& batch,
                   double gradient_scale, const BlockWorkspace& workspace) const {
  const std::int64_t tokens = batch.tokens(), chunk = logits_.extent(0);
  const Tensor weight = store_->weight(weight_).rows(0, rows_.size());
  const NormStatistics statistics = statistics_.first(x.extent(0));
  norm_.forward(workspace.own_branch, statistics, x);
  const Tensor normed = tensor_.all_rows(workspace.own_branch, workspace.gathered);
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    const Tensor logits = logits_.rows(0, count), rows = normed.rows(first, count);
    backend_->matmul(logits, rows, weight, {.transpose_b = true});
    cross_entropy(losses.rows(first, count), logits, batch.targets.rows(first, count),
                  gradient_scale);
    if (gradient_scale == 0) continue;
    backend_->matmul(workspace.dnormed.rows(first, count), logits, weight);
    backend_->matmul(store_->gradient(weight_).rows(0, rows_.size()), logits, rows,
                     {.transpose_a = true, .accumulate = !batch.overwrites || first > 0});
  }
  if (gradient_scale == 0) return;
  tensor_.sum(workspace.own_dnormed, workspace.dnormed);
  norm_.backward(gradient, workspace.own_dnormed, x, statistics);
}

void Head::cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                         double gradient_scale) const {
  if (!tensor_.is_split()) return backend_->cross_entropy(losses, logits, targets, gradient_scale);
  const std::int64_t count = logits.extent(0);
  const Tensor all = partials_.rows(0, tensor_.size() * count * 3).view({tensor_.size(), count, 3});
  const Tensor mine = all.rows(tensor_.rank(), 1).view({count, 3});
  backend_->cross_entropy_partial(mine, logits, targets, rows_.begin);
  tensor_.finish(tensor_.group().all_gather(all, mine));
  backend_->cross_entropy_merged(losses, logits, targets, all, rows_.begin, gradient_scale);
}

Tensor Head::logits(Tensor x, const BlockWorkspace& workspace) const {
  const Tensor normed = workspace.own_branch.rows(0, x.extent(0));
  const Tensor logits = logits_.rows(0, x.extent(0));
  norm_.forward(normed, statistics_.first(x.extent(0)), x);
  backend_->matmul(logits, normed, store_->weight(weight_), {.transpose_b = true});
  return logits;
}

}  // namespace kintsugi
