#pragma once

#include "model/layers/layer_run.h"

namespace kintsugi {

// The loss of preference pairs (DPO) from the losses of tokens. It depends on sums over whole
// sequences, so a token's gradient is known only after the forward of the head: the head runs a
// second time, with the weights that this class computes. With context parallelism, the sums are
// all-reduced.
class PreferenceLoss {
 public:
  // `tokens` of a micro-batch on one of `context` ranks.
  PreferenceLoss(Arena& arena, DType dtype, std::int64_t tokens, int context,
                 const PreferenceOptions& options);

  // The most sequences of a micro-batch, of which each has a token on some context rank: an even
  // number.
  static std::int64_t most_sequences(std::int64_t tokens, int context) {
    return tokens * context / 2 * 2;
  }

  // Returns d loss / d token loss (tokens), and adds the sums over the pairs to totals (4):
  // Backend::preference_loss.
  Tensor weigh(const LayerRun& run, Tensor losses, Tensor totals) const;

 private:
  PreferenceOptions options_;
  Tensor sums_;     // (sequences)
  Tensor weights_;  // (tokens)
};

}  // namespace kintsugi
