#pragma once

#include <functional>

#include "comm/communicator.h"
#include "eval/scoring_model.h"

namespace kintsugi {

// Lets rank 0 alone evaluate a model that spans several ranks: it reads the tasks and sends the
// tokens of the requests to the other ranks, block by block. They call follow().
class LedModel : public ScoringModel {
 public:
  // Thrown by score() if the evaluation was interrupted.
  struct Interrupted {};

  // `interrupts` is called by all ranks before each block and returns the same on all of them. All
  // objects must outlive this one. A block has at most block_tokens tokens, or one request.
  LedModel(ScoringModel& model, Communicator& group, std::function<bool()> interrupts,
           std::size_t block_tokens);

  TokenIds encode(const std::string& text) override { return model_->encode(text); }
  std::string decode(std::span<const std::int32_t> ids) override { return model_->decode(ids); }
  std::int32_t prefix_token() const override { return model_->prefix_token(); }
  std::size_t max_length() const override { return model_->max_length(); }
  std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                       const ScoringProgress& progress) override;

  // On rank 0, after the last score(), also if an exception was thrown: the others return.
  void finish();
  // On the other ranks. What the model throws on all ranks ends it.
  void follow();

 private:
  std::vector<ContinuationScore> score_block(const std::vector<TokenPair>& block,
                                             const ScoringProgress& progress);

  ScoringModel* model_;
  Communicator* group_;
  std::function<bool()> interrupts_;
  std::size_t block_tokens_;
  bool ended_ = false;  // the others follow no longer
};

}  // namespace kintsugi
