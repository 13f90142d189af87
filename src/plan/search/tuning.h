#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/search/point_search.h"
#include "plan/search/search.h"

namespace kintsugi {

// The result of a trial: a short real run of a layout.
struct TrialResult {
  double tokens_per_s = 0;   // of all ranks
  std::string failure = {};  // why the trial failed; empty: it ran

  bool ran() const { return failure.empty(); }
};

struct Trial {
  Layout layout = {};
  double predicted = 0;  // tokens/s
  TrialResult result = {};
  double seconds = 0;  // duration of the trial
};

double tokens_per_s(const Evaluation& evaluation);  // of all ranks

// Which layouts are worth a trial, given the error of the planner's predictions.
struct TrialLimits {
  double memory = 1.1;  // predicted memory, at most this factor of the GPU memory
  double slower = 2;    // predicted step time, at most this factor of the best that fits
};

// The planner's layouts within the range: first those that fit, then the others, each fastest
// first.
std::vector<Evaluation> trial_candidates(Planner& planner, const SearchLimits& limits,
                                         const TrialLimits& range);

// Chooses the layouts to try, one at a time or several in parallel: first the planner's best few,
// then those that dlib asks for. For dlib the axes are tp, cp, pp, micro-batch, schedule, ZeRO and
// recompute, with integer coordinates. Each question of dlib is answered with log(tokens/s) of an
// untried layout near that point.
class LayoutTuner {
 public:
  explicit LayoutTuner(std::vector<Evaluation> candidates, std::size_t seeds = 5);

  const std::vector<Evaluation>& candidates() const { return candidates_; }
  std::optional<std::size_t> find(const Layout& layout) const;  // index among the candidates

  // The candidate to try next. nullopt: all have been tried, or the first few still run.
  std::optional<std::size_t> next();
  // Reports a result, once per candidate: of a candidate from next() or, before the first next(),
  // of an earlier tuning.
  void report(std::size_t candidate, const TrialResult& result);

 private:
  enum class Stage : std::uint8_t { Untried, Running, Done };
  struct State {
    PointSearch::Point point = {};
    Stage stage = Stage::Untried;
    double value = 0;                            // for dlib, set when done
    std::optional<std::uint64_t> question = {};  // of dlib, answered by the result
  };

  double value_of(const TrialResult& result) const;
  void start_search();
  std::size_t choose(const PointSearch::Point& point) const;  // untried, near the point
  std::size_t take(std::size_t candidate);

  std::vector<Evaluation> candidates_;
  std::size_t seeds_;
  std::vector<State> states_;   // of the candidates
  std::vector<int> last_ = {};  // largest coordinate of each axis
  std::size_t untried_ = 0;
  double slowest_ = 0;  // tokens/s of the trials that ran; 0: none
  std::unique_ptr<PointSearch> search_;
};

}  // namespace kintsugi
