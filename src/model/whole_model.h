#pragma once

#include "comm/communicator.h"
#include "model/stage.h"

namespace kintsugi {

// An unsharded model on one device: for classifiers and embeddings of documents, and for comparison
// with other programs.
class WholeModel {
 public:
  // The store must have all weights in memory, and gradients if `options.training`.
  WholeModel(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
             const StageOptions& options);

  void prepare() { scratch_.prepare(); }

  // Computes the gradients of gradient_scale * (sum of losses) and adds the sum to loss_sum (1).
  void forward_backward(const MicroBatch& batch, double gradient_scale, Tensor loss_sum);
  // Computes the losses only and adds their sum to loss_sum (1).
  void evaluate(const MicroBatch& batch, Tensor loss_sum);
  Tensor losses(std::int64_t tokens) const { return scratch_.losses(tokens); }

  // Logits of all tokens, at most one classifier chunk: for classifiers, any micro-batch.
  Tensor all_logits(const MicroBatch& batch);
  // The output of the final norm (tokens, hidden): transformers' last_hidden_state.
  Tensor hidden_states(const MicroBatch& batch);

 private:
  Tensor forward(const MicroBatch& batch);

  LocalCommunicator single_rank_;
  StageScratch scratch_;
  Stage stage_;
  Tensor output_, gradient_;  // (tokens, hidden)
};

}  // namespace kintsugi
