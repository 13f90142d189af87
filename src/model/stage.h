#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/bucket_hooks.h"
#include "model/layers/embedding.h"
#include "model/layers/head.h"

namespace kintsugi {

// How large a stage's passes get and what they keep.
struct StageOptions {
  std::int64_t sequences = 1;      // per micro-batch
  std::int64_t length = 0;         // tokens per sequence
  std::int64_t max_positions = 0;  // rotation table's length; 0: `length`
  Recompute recompute = Recompute::None;
  bool training = true;               // false: no gradients, one stash for all blocks
  std::int64_t classifier_chunk = 0;  // tokens of logits at a time; 0: chosen from the vocabulary
};

// The run of layers one pipeline rank owns; today the whole model. Memory is taken from the arena
// when it is built.
class Stage {
 public:
  // `hooks`, if any, are told which buckets are in use; without, all are always there.
  Stage(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
        const StageOptions& options, BucketHooks* hooks = nullptr);

  // Writes constant tables to the device. Apart from construction, so that a stage can be built for
  // its memory plan alone.
  void prepare();

  // Adds to the gradients (batch.first: writes, where they are products) those of gradient_scale *
  // sum of losses; the sum of losses is added to
  // loss_sum (1).
  void forward_backward(const MicroBatch& batch, double gradient_scale, Tensor loss_sum);
  // Losses per token only.
  void evaluate(const MicroBatch& batch, Tensor loss_sum);
  Tensor losses(std::int64_t tokens) const { return losses_.rows(0, tokens); }

  // Logits (1, vocabulary) of the last token of one sequence, continuing the caches (one per
  // block).
  Tensor next_logits(const MicroBatch& batch, std::vector<KvCache>& caches);
  // Logits of every token, at most one classifier chunk of them: for tests against other programs.
  Tensor all_logits(const MicroBatch& batch);

 private:
  // From token ids to the last block's output. The embedding's bucket stays if it is tied to the
  // head.
  Tensor forward_blocks(const MicroBatch& batch, std::vector<KvCache>* caches);
  int head_bucket() const { return static_cast<int>(config_.layers) + 1; }
  // The head's weights while something runs.
  template <class F>
  void with_head(const F& run);
  template <class F>
  void told(const F& tell) const {
    if (hooks_ != nullptr) tell(*hooks_);
  }
  BlockStash stash(std::size_t layer, const MicroBatch& batch) const;

  Backend* backend_;
  BucketHooks* hooks_;
  ModelConfig config_;
  StageOptions options_;
  PositionTables tables_;
  std::optional<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::optional<Head> head_;
  std::vector<BlockStash> stashes_;  // one per block; one in all without training
  BlockWorkspace workspace_;
  Tensor output_;    // (tokens, hidden): what the last block returns
  Tensor gradient_;  // (tokens, hidden): of the residual stream, on its way down
  Tensor losses_;    // (tokens)
};

}  // namespace kintsugi
