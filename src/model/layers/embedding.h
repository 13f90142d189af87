#pragma once

#include <optional>

#include "model/layers/norm.h"
#include "model/layers/tensor_group.h"
#include "model/micro_batch.h"
#include "model/stash.h"

namespace kintsugi {

// What the backward needs of one micro-batch.
struct EmbeddingStash {
  Tensor raw;  // (rows, hidden) before the norm, if there is one
  NormStatistics statistics;
};

// Token embedding, learned positions (GPT-2), LayerNorm after it (BLOOM), dropout. Each rank of the
// tensor group has some of the vocabulary's rows.
class Embedding {
 public:
  Embedding(Backend& backend, const ParameterStore& store, const ModelConfig& config,
            const TensorGroup& tensor);

  EmbeddingStash allocate_stash(Arena& arena, const PassSize& size) const;
  // x (rows, hidden): own rows.
  void forward(Tensor x, const MicroBatch& batch, const EmbeddingStash& stash,
               const BlockWorkspace& workspace) const;
  void backward(Tensor dx, const MicroBatch& batch, const EmbeddingStash& stash,
                const BlockWorkspace& workspace) const;  // dx is used up

 private:
  Backend* backend_;
  const ParameterStore* store_;
  TensorGroup tensor_;
  std::int64_t hidden_;
  int table_ = -1;
  RowRange rows_;  // of the vocabulary
  int positions_ = -1;
  std::optional<Norm> norm_;
};

}  // namespace kintsugi
