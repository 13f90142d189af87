#pragma once

#include "model/layers/norm.h"

namespace kintsugi {

// The token with the largest logit of each row, in this rank's shard of the vocabulary.
struct LikelyTokens {
  Tensor logits = {};   // (tokens), in accumulator precision
  Tensor log_sum = {};  // (tokens), the same: NaN if a logit of the row is NaN
  Tensor ids = {};      // (tokens), int32
};

// Final norm, LM head and cross-entropy, computed in chunks of tokens so that the full logits are
// never stored. A training forward also computes the gradient of x. The tensor ranks shard the
// vocabulary and all-gather three numbers per token. The few labels of a classifier are not
// sharded, and all tokens are one chunk.
class Head {
 public:
  explicit Head(const ModelSpec& model);

  void declare(Declaration& d);  // declares the table last
  // Allocates memory for micro-batches up to `size` and for `chunk` tokens of logits.
  void allocate(Arena& arena, const LayerContext& context, const BatchSize& size,
                std::int64_t chunk);

  // Computes losses (tokens) of x (rows, hidden), and what the options ask for. A gradient is that
  // of the sum of losses (and z-losses): of x into `gradient` (rows, hidden), and of the head's and
  // norm's parameters. Without a gradient, `likely` may be asked for.
  void forward(const LayerRun& run, Tensor losses, Tensor gradient, Tensor x,
               const CrossEntropyOptions& options, const LikelyTokens& likely = {}) const;
  // Logits (rows, vocabulary of this rank) of x, at most one chunk.
  Tensor logits(const LayerRun& run, Tensor x) const;

  // Tokens per chunk for about `elements` logits.
  static std::int64_t default_chunk(std::int64_t elements, std::int64_t vocabulary,
                                    std::int64_t max_tokens);

  std::int64_t chunk() const { return logits_.extent(0); }  // tokens
  // The normed rows (rows, hidden) of x, which logits() uses too.
  Tensor hidden_states(const LayerRun& run, Tensor x) const;
  // What logits() and, without a gradient, forward() write: (chunk, vocabulary of this rank).
  const Tensor& logits_memory() const { return logits_; }
  const RowRange& vocabulary() const { return rows_; }  // of this rank

 private:
  bool is_sharded(const TensorGroup& tensor) const {
    return tensor.is_split() && !spec_.classifies;
  }
  void cross_entropy(const LayerRun& run, Tensor losses, Tensor logits, Tensor targets,
                     const CrossEntropyOptions& options) const;

  HeadSpec spec_;
  std::int64_t hidden_;
  Norm norm_;
  int weight_ = -1;
  RowRange rows_;    // of the vocabulary, on this rank
  Tensor logits_;    // (chunk, local vocabulary), rows padded
  Tensor partials_;  // (ranks * chunk * 3), if there are several ranks
  NormStatistics statistics_;
};

}  // namespace kintsugi
