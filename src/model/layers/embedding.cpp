#include "model/layers/embedding.h"

namespace kintsugi {

Embedding::Embedding(Backend& backend, const ParameterStore& store, const ModelConfig& config,
                     const TensorGroup& tensor)
    : backend_(&backend), store_(&store), tensor_(tensor), hidden_(config.hidden_size) {
  const OuterNames names = outer_names(config);
  table_ = store.set().index(names.embedding);
  rows_ = store.set().rows(table_);
  if (!names.positions.empty()) positions_ = store.set().index(names.positions);
  if (config.traits().embedding_norm)
    norm_.emplace(backend, store, NormKind::Layer, config.norm_eps, names.embedding_norm_weight,
                  names.embedding_norm_bias);
}

EmbeddingStash Embedding::allocate_stash(Arena& arena, const PassSize& size) const {
  if (!norm_) return {};
  const DType wide = accumulator_of(store_->dtype());
  const auto statistic = [&] {
    return arena.allocate(Region::Activations, "norm statistics", wide, {size.rows()});
  };
  return {arena.allocate(Region::Activations, "embedding", store_->dtype(), {size.rows(), hidden_}),
          {statistic(), statistic()}};
}

void Embedding::forward(Tensor x, const MicroBatch& batch, const EmbeddingStash& stash,
                        const BlockWorkspace& workspace) const {
  const Tensor summed = norm_ ? stash.raw.rows(0, x.extent(0)) : x;
  const Tensor found = tensor_.splits_rows() ? workspace.branch : summed;
  backend_->embedding_forward(found, batch.ids, store_->weight(table_).rows(0, rows_.size()), false,
                              rows_.begin);
  tensor_.sum(summed, found);
  if (positions_ >= 0)
    backend_->embedding_forward(summed, tensor_.own(batch.positions), store_->weight(positions_),
                                true);
  if (norm_) norm_->forward(x, stash.statistics.first(x.extent(0)), summed);
  if (batch.dropout > 0) backend_->dropout(x, x, tensor_.dropout(batch, 0));
}

void Embedding::backward(Tensor dx, const MicroBatch& batch, const EmbeddingStash& stash,
                         const BlockWorkspace& workspace) const {
  if (batch.dropout > 0) backend_->dropout(dx, dx, tensor_.dropout(batch, 0));
  if (norm_)
    norm_->backward(dx, dx, stash.raw.rows(0, dx.extent(0)), stash.statistics.first(dx.extent(0)));
  if (positions_ >= 0)
    backend_->embedding_backward(store_->gradient(positions_), tensor_.own(batch.positions), dx);
  backend_->embedding_backward(store_->gradient(table_).rows(0, rows_.size()), batch.ids,
                               tensor_.all_rows(dx, workspace.branch), rows_.begin);
}

}  // namespace kintsugi
