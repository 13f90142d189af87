#pragma once

#include <optional>

#include "model/layers/norm.h"
#include "model/micro_batch.h"

namespace kintsugi {

// Token embedding, learned positions (GPT-2), LayerNorm after it (BLOOM), dropout.
class Embedding {
 public:
  Embedding(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
            std::int64_t max_tokens);

  void forward(Tensor x, const MicroBatch& batch) const;
  void backward(Tensor dx, const MicroBatch& batch) const;  // dx is used up

 private:
  Backend* backend_;
  const ParameterStore* store_;
  int table_ = -1;
  int positions_ = -1;
  std::optional<Norm> norm_;
  Tensor raw_;  // (tokens, hidden) before the norm
  NormStatistics statistics_;
};

}  // namespace kintsugi
