#include "model/layers/embedding.h"

namespace kintsugi {
namespace {

DropoutOptions dropout_options(const MicroBatch& batch) {
  return {
      .probability = batch.dropout, .key = batch.dropout_key(0), .first_row = batch.first_token};
}

}  // namespace

Embedding::Embedding(Backend& backend, Arena& arena, const ParameterStore& store,
                     const ModelConfig& config, std::int64_t max_tokens)
    : backend_(&backend), store_(&store) {
  const OuterNames names = outer_names(config);
  table_ = store.set().index(names.embedding);
  if (!names.positions.empty()) positions_ = store.set().index(names.positions);
  if (!config.traits().embedding_norm) return;
  norm_.emplace(backend, store, NormKind::Layer, config.norm_eps, names.embedding_norm_weight,
                names.embedding_norm_bias);
  const DType wide = accumulator_of(store.dtype());
  raw_ = arena.allocate(Region::Activations, "embedding", store.dtype(),
                        {max_tokens, config.hidden_size});
  statistics_ = {arena.allocate(Region::Activations, "norm statistics", wide, {max_tokens}),
                 arena.allocate(Region::Activations, "norm statistics", wide, {max_tokens})};
}

void Embedding::forward(Tensor x, const MicroBatch& batch) const {
  const Tensor summed = norm_ ? raw_.rows(0, batch.tokens()) : x;
  backend_->embedding_forward(summed, batch.ids, store_->weight(table_), false);
  if (positions_ >= 0)
    backend_->embedding_forward(summed, batch.positions, store_->weight(positions_), true);
  if (norm_) norm_->forward(x, statistics_, summed);
  if (batch.dropout > 0) backend_->dropout(x, x, dropout_options(batch));
}

void Embedding::backward(Tensor dx, const MicroBatch& batch) const {
  if (batch.dropout > 0) backend_->dropout(dx, dx, dropout_options(batch));
  if (norm_) norm_->backward(dx, dx, raw_.rows(0, batch.tokens()), statistics_);
  backend_->embedding_backward(store_->gradient(table_), batch.ids, dx);
  if (positions_ >= 0)
    backend_->embedding_backward(store_->gradient(positions_), batch.positions, dx);
}

}  // namespace kintsugi
