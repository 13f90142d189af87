#pragma once

#include "model/layers/norm.h"
#include "model/micro_batch.h"

namespace kintsugi {

// Final norm, LM head and cross-entropy, a chunk of tokens at a time: the full logits never exist.
// Because the loss's gradient needs nothing from later, a training forward leaves d loss / d x
// behind at once.
class Head {
 public:
  Head(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
       std::int64_t max_tokens, std::int64_t chunk_tokens, bool training);

  // losses (tokens) of x (tokens, hidden). With a gradient_scale other than 0, `gradient` becomes
  // gradient_scale times the gradient of the summed losses, and the head's and norm's parameters
  // get theirs.
  void forward(Tensor losses, Tensor gradient, Tensor x, const MicroBatch& batch,
               double gradient_scale) const;
  // Logits of the given rows: (rows, vocabulary), at most one chunk.
  Tensor logits(Tensor x) const;

  // Tokens per chunk that keep about `elements` logits.
  static std::int64_t default_chunk(std::int64_t elements, std::int64_t vocabulary,
                                    std::int64_t max_tokens);

 private:
  Backend* backend_;
  const ParameterStore* store_;
  Norm norm_;
  int weight_;
  Tensor normed_;   // (tokens, hidden)
  Tensor dnormed_;  // (tokens, hidden), training only
  Tensor logits_;   // (chunk, vocabulary), rows padded
  NormStatistics statistics_;
};

}  // namespace kintsugi
