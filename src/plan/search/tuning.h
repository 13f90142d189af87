#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/search/point_search.h"
#include "plan/search/search.h"

namespace kintsugi {

// What a short real run in a layout came to.
struct TrialResult {
  double tokens_per_s = 0;   // of all ranks
  std::string failure = {};  // why there is no figure, in a few words; empty: there is

  bool ran() const { return failure.empty(); }
};

struct Trial {
  Layout layout = {};
  double predicted = 0;  // tokens/s
  TrialResult result = {};
  double seconds = 0;  // that the trial took
};

double tokens_per_s(const Evaluation& evaluation);  // of all ranks

// Which layouts are worth a trial: the model may be wrong, but not by any amount.
struct TrialRange {
  double memory = 1.1;  // of what a GPU has
  double slower = 2;    // than the best that fits, at most
};

// Those of the planner's search within the range: first those that fit, each part fastest first.
std::vector<Evaluation> trial_candidates(Planner& planner, const SearchLimits& limits,
                                         const TrialRange& range);

// Chooses which layouts to try, one after the other or several at once: the model's best few, then
// what dlib asks for. dlib sees a function of the positions in the lists of tp, cp, pp,
// micro-batch, schedule, ZeRO and recompute; the answer is the logarithm of what an untried layout
// near that point reaches.
class LayoutTuner {
 public:
  explicit LayoutTuner(std::vector<Evaluation> candidates, std::size_t seeds = 5);

  const std::vector<Evaluation>& candidates() const { return candidates_; }
  std::optional<std::size_t> find(const Layout& layout) const;  // among the candidates

  // The candidate to try next. None: all have been tried, or the search waits for the first few.
  std::optional<std::size_t> next();
  // Once per candidate: of one that next() named or, before the first next(), one known already.
  void report(std::size_t candidate, const TrialResult& result);

 private:
  enum class Stage : std::uint8_t { Untried, UnderWay, Done };
  struct State {
    PointSearch::Point point = {};
    Stage stage = Stage::Untried;
    double value = 0;                            // for dlib, once done
    std::optional<std::uint64_t> question = {};  // of dlib that its result answers
  };

  double value_of(const TrialResult& result) const;
  void start_search();
  std::size_t choose(const PointSearch::Point& point) const;  // untried, near the point
  std::size_t take(std::size_t candidate);

  std::vector<Evaluation> candidates_;
  std::size_t seeds_;
  std::vector<State> states_;   // of candidates
  std::vector<int> last_ = {};  // position on each axis
  std::size_t untried_ = 0;
  double slowest_ = 0;  // tokens/s of the trials that ran; 0: none
  std::unique_ptr<PointSearch> search_;
};

}  // namespace kintsugi
