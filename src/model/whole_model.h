#pragma once

#include "comm/local_communicator.h"
#include "model/stage.h"

namespace kintsugi {

// A model in one piece on one device, for generation, scoring and comparison with other programs.
class WholeModel {
 public:
  // The store has all weights, and gradients if `options.training`.
  WholeModel(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
             const StageOptions& options);

  void prepare() { scratch_.prepare(); }
  // One per layer, for sequences of up to `tokens`.
  std::vector<LayerCache> allocate_caches(Arena& arena, std::int64_t tokens) const;

  // Gradients of gradient_scale * the sum of losses; that sum is added to loss_sum (1).
  void forward_backward(const MicroBatch& batch, double gradient_scale, Tensor loss_sum);
  // Losses per token only.
  void evaluate(const MicroBatch& batch, Tensor loss_sum);
  Tensor losses(std::int64_t tokens) const { return scratch_.losses(tokens); }

  // Logits (1, vocabulary) of the last token of one sequence, continuing the caches (one per
  // block).
  Tensor next_logits(const MicroBatch& batch, std::vector<LayerCache>& caches);
  // Logits of every token, at most one classifier chunk of them: for tests against other programs.
  Tensor all_logits(const MicroBatch& batch);

 private:
  Tensor forward(const MicroBatch& batch, std::vector<LayerCache>* caches);

  LocalCommunicator alone_;
  StageScratch scratch_;
  Stage stage_;
  Tensor output_, gradient_;  // (tokens, hidden)
};

}  // namespace kintsugi
