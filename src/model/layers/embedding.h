#pragma once

#include <optional>

#include "model/layers/norm.h"

namespace kintsugi {

// Token embedding, learned positions (GPT-2), LayerNorm (BLOOM), dropout. The tensor ranks shard
// the vocabulary.
class Embedding {
 public:
  explicit Embedding(const ModelSpec& model);

  void declare(Declaration& d);  // declares the table first
  // Looks up this rank's rows of the vocabulary.
  void bind(const ParameterSet& set) { rows_ = set.rows(table_); }
  bool has_norm() const { return norm_.has_value(); }

  // x (rows, hidden): this rank's rows of the residual stream.
  void forward(const LayerRun& run, Tensor x) const;
  void backward(const LayerRun& run, Tensor dx) const;  // overwrites dx

 private:
  EmbeddingSpec spec_;
  std::int64_t hidden_;
  int table_ = -1;
  RowRange rows_;  // of the vocabulary
  int positions_ = -1;
  std::optional<Norm> norm_;
  Saved raw_;  // (rows, hidden) before the norm, if there is one
};

}  // namespace kintsugi
