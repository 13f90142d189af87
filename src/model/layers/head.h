#pragma once

#include "model/layers/norm.h"

namespace kintsugi {

// Final norm, LM head and cross-entropy, a chunk of tokens at a time: the full logits never exist.
// Because the loss's gradient needs nothing from later, a training forward leaves d loss / d x
// behind at once. Each rank of the tensor group has the logits of some of the vocabulary; the ranks
// exchange three numbers per token.
class Head {
 public:
  explicit Head(const ModelSpec& model);

  void declare(Declaration& d);  // the table last
  // Takes its memory, for micro-batches up to `size`, `chunk` tokens of logits at a time.
  void allocate(Arena& arena, const LayerContext& context, const BatchSize& size,
                std::int64_t chunk);

  // losses (tokens) of x (rows, hidden). With a gradient_scale other than 0, `gradient` (rows,
  // hidden) becomes gradient_scale times the gradient of the summed losses, and the head's and
  // norm's parameters get theirs.
  void forward(const LayerRun& run, Tensor losses, Tensor gradient, Tensor x,
               double gradient_scale) const;
  // Logits of the given rows: (rows, vocabulary), at most one chunk; on one rank.
  Tensor logits(const LayerRun& run, Tensor x) const;

  // Tokens per chunk that keep about `elements` logits.
  static std::int64_t default_chunk(std::int64_t elements, std::int64_t vocabulary,
                                    std::int64_t max_tokens);

  std::int64_t chunk() const { return logits_.extent(0); }  // tokens of logits at a time

 private:
  void cross_entropy(const LayerRun& run, Tensor losses, Tensor logits, Tensor targets,
                     double gradient_scale) const;

  HeadSpec spec_;
  std::int64_t hidden_;
  Norm norm_;
  int weight_ = -1;
  RowRange rows_;    // of the vocabulary
  Tensor logits_;    // (chunk, own vocabulary), rows padded
  Tensor partials_;  // (ranks * chunk * 3), if there are several
  NormStatistics statistics_;
};

}  // namespace kintsugi
