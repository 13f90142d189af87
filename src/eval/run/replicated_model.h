#pragma once

#include "comm/communicator.h"
#include "eval/scoring_model.h"

namespace kintsugi {

// A model of which each rank of `replicas` has a copy. Each computes a contiguous range of the
// requests, of about the same number of tokens; all ranks get all results.
class ReplicatedModel : public ScoringModel {
 public:
  ReplicatedModel(ScoringModel& own, Communicator& replicas) : own_(own), replicas_(replicas) {}

  TokenIds encode(const std::string& text) override { return own_.encode(text); }
  std::string decode(std::span<const std::int32_t> ids) override { return own_.decode(ids); }
  std::int32_t prefix_token() const override { return own_.prefix_token(); }
  std::size_t max_length() const override { return own_.max_length(); }
  std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                       const ScoringProgress& progress) override;
  std::vector<std::string> generate(std::span<const TextRequest> requests,
                                    const ScoringProgress& progress) override;

 private:
  ScoringModel& own_;
  Communicator& replicas_;
};

}  // namespace kintsugi
