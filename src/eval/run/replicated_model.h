#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "eval/scoring_model.h"

namespace kintsugi {

struct RequestRange {
  std::size_t begin = 0, end = 0;
};

// The requests of one of `ranks`: those that begin in its part of the summed costs.
template <class Cost>
RequestRange range_of(std::size_t count, int rank, int ranks, Cost&& cost) {
  std::uint64_t all = 0, before = 0;
  for (std::size_t i = 0; i < count; ++i) all += cost(i);
  RequestRange range{count, count};
  for (std::size_t i = 0; i < count; ++i) {
    const auto owner = static_cast<int>(before * static_cast<std::uint64_t>(ranks) / all);
    if (owner == rank && range.begin == count) range.begin = i;
    if (owner > rank) {
      range.end = i;
      break;
    }
    before += cost(i);
  }
  if (range.begin == count) return {0, 0};
  return range;
}

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
