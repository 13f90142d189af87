#pragma once

#include "model/layers/norm.h"
#include "model/layers/tensor_group.h"
#include "model/micro_batch.h"
#include "model/stash.h"

namespace kintsugi {

// Final norm, LM head and cross-entropy, a chunk of tokens at a time: the full logits never exist.
// Because the loss's gradient needs nothing from later, a training forward leaves d loss / d x
// behind at once. Each rank of the tensor group has the logits of some of the vocabulary; the ranks
// exchange three numbers per token.
class Head {
 public:
  Head(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
       const TensorGroup& tensor, const PassSize& size, std::int64_t chunk_tokens);

  // losses (tokens) of x (rows, hidden). With a gradient_scale other than 0, `gradient` (rows,
  // hidden) becomes gradient_scale times the gradient of the summed losses, and the head's and
  // norm's parameters get theirs.
  void forward(Tensor losses, Tensor gradient, Tensor x, const MicroBatch& batch,
               double gradient_scale, const BlockWorkspace& workspace) const;
  // Logits of the given rows: (rows, vocabulary), at most one chunk; on one rank.
  Tensor logits(Tensor x, const BlockWorkspace& workspace) const;

  // Tokens per chunk that keep about `elements` logits.
  static std::int64_t default_chunk(std::int64_t elements, std::int64_t vocabulary,
                                    std::int64_t max_tokens);

  std::int64_t chunk() const { return logits_.extent(0); }  // tokens of logits at a time

 private:
  void cross_entropy(Tensor losses, Tensor logits, Tensor targets, double gradient_scale) const;

  Backend* backend_;
  const ParameterStore* store_;
  TensorGroup tensor_;
  Norm norm_;
  int weight_;
  RowRange rows_;    // of the vocabulary
  Tensor logits_;    // (chunk, own vocabulary), rows padded
  Tensor partials_;  // (ranks * chunk * 3), if there are several
  NormStatistics statistics_;
};

}  // namespace kintsugi
