#include "model/layers/embedding.h"

namespace kintsugi {

Embedding::Embedding(const ModelSpec& model) : spec_(model.embedding), hidden_(model.hidden_size) {
  if (spec_.norm) norm_.emplace(*spec_.norm);
}

void Embedding::declare(Declaration& d) {
  const auto options = [&](Declaration::Shard::Along along) {
    return Declaration::Options{
        .group = ParameterGroup::Embedding, .init = spec_.init, .shard = {.along = along}};
  };
  table_ =
      d.table(spec_.table, spec_.vocab_size, hidden_, options(Declaration::Shard::Along::Outputs));
  if (!spec_.positions.empty())
    positions_ = d.table(spec_.positions, spec_.max_positions, hidden_,
                         options(Declaration::Shard::Along::None));
  if (!norm_) return;
  norm_->declare(d, hidden_);
  raw_ = d.saved({.label = "embedding", .per = Per::Row, .width = hidden_});
  norm_->declare_statistics(d);
}

void Embedding::forward(const LayerRun& run, Tensor x) const {
  Backend& backend = run.backend();
  const TensorGroup& tensor = run.tensor();
  const Tensor summed = norm_ ? run[raw_] : x;
  const Tensor partial = tensor.splits_rows() ? run.stream.branch : summed;
  backend.embedding_forward(partial, run.batch.ids,
                            run.store().weight(table_).rows(0, rows_.size()), false, rows_.begin);
  tensor.sum(summed, partial);
  if (positions_ >= 0)
    backend.embedding_forward(summed, tensor.own(run.batch.positions),
                              run.store().weight(positions_), true);
  if (norm_) norm_->forward(run, x, norm_->statistics(run), summed);
  if (run.batch.dropout > 0) backend.dropout(x, x, tensor.dropout(run.batch, 0));
}

void Embedding::backward(const LayerRun& run, Tensor dx) const {
  Backend& backend = run.backend();
  const TensorGroup& tensor = run.tensor();
  if (run.batch.dropout > 0) backend.dropout(dx, dx, tensor.dropout(run.batch, 0));
  if (norm_) norm_->backward(run, dx, dx, run[raw_], norm_->statistics(run));
  if (positions_ >= 0)
    if (const Tensor gradient = run.store().gradient(positions_))
      backend.embedding_backward(gradient, tensor.own(run.batch.positions), dx);
  if (const Tensor gradient = run.store().gradient(table_))
    backend.embedding_backward(gradient.rows(0, rows_.size()), run.batch.ids,
                               tensor.all_rows(dx, run.stream.branch), rows_.begin);
}

}  // namespace kintsugi
