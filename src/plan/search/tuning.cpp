#include "plan/search/tuning.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kAxes = 8;

// The sort keys of a layout on each axis. Neighbours on an axis behave similarly.
std::array<std::int64_t, kAxes> keys_of(const Layout& l) {
  constexpr std::int64_t kAll = std::int64_t{1} << 32;  // above any shard group
  const std::int64_t schedule = l.schedule == PipelineKind::ZeroBubbleH1 ? -2
                                : l.schedule == PipelineKind::GPipe      ? -1
                                                                         : l.chunks;
  const std::int64_t recompute = l.recompute == Recompute::None        ? 0
                                 : l.recompute == Recompute::Selective ? 1
                                                                       : kAll - l.recompute_every;
  return {l.tp,      2 * l.cp + (l.context == ContextMethod::Ulysses ? 1 : 0),
          l.pp,      l.micro_batch,
          schedule,  l.zero * 2 * kAll + (l.shard_group == 0 ? kAll : l.shard_group),
          recompute, 2 * l.ep + (l.dispatch == Dispatch::AllToAll ? 1 : 0)};
}

double squared_distance(const PointSearch::Point& a, const PointSearch::Point& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// Weight of the predicted speed against the distance from dlib's point: a layout predicted to be
// twice as fast may be two coordinates further away. In synthetic tests this halved the trials
// needed to find the best.
constexpr double kModelWeight = 6;

// A failed trial counts as this fraction of the slowest that ran: worse than all of them, so that
// the search leaves the region, but without a steep step. dlib bounds the function by its steepest
// slope, and a step at the memory limit would hide all other slopes.
constexpr double kFailed = 0.8;

}  // namespace

double tokens_per_s(const Evaluation& e) { return e.tokens_per_s_per_gpu * e.layout.ranks(); }

std::vector<Evaluation> trial_candidates(Planner& planner, const SearchLimits& limits,
                                         const TrialLimits& range) {
  std::vector<Evaluation> all;
  double fastest = std::numeric_limits<double>::infinity();
  const double available = planner.machine().gpu.memory_gb * 1e9;
  for_each_layout(planner.job(), planner.machine(), limits, [&](const Layout& layout) {
    const Evaluation e = planner.evaluate(layout);
    if (e.memory_bytes > range.memory * available) return;
    if (e.fits) fastest = std::min(fastest, e.step_s);
    all.push_back(e);
  });
  std::erase_if(all, [&](const Evaluation& e) { return e.step_s > range.slower * fastest; });
  std::stable_sort(all.begin(), all.end(), [](const Evaluation& a, const Evaluation& b) {
    return std::pair(!a.fits, a.step_s) < std::pair(!b.fits, b.step_s);
  });
  return all;
}

LayoutTuner::LayoutTuner(std::vector<Evaluation> candidates, std::size_t seeds)
    : candidates_(std::move(candidates)),
      seeds_(std::min(seeds, candidates_.size())),
      states_(candidates_.size()),
      untried_(candidates_.size()) {
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    std::vector<std::int64_t> values;
    for (const Evaluation& e : candidates_) values.push_back(keys_of(e.layout)[axis]);
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    if (values.size() < 2) continue;
    last_.push_back(static_cast<int>(values.size()) - 1);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const std::int64_t key = keys_of(candidates_[i].layout)[axis];
      const auto at = std::lower_bound(values.begin(), values.end(), key);
      states_[i].point.push_back(static_cast<int>(at - values.begin()));
    }
  }
}

std::optional<std::size_t> LayoutTuner::find(const Layout& layout) const {
  for (std::size_t i = 0; i < candidates_.size(); ++i)
    if (candidates_[i].layout == layout) return i;
  return std::nullopt;
}

double LayoutTuner::value_of(const TrialResult& result) const {
  if (result.ran()) return std::log(result.tokens_per_s);
  if (slowest_ > 0) return std::log(kFailed * slowest_);
  double least = std::numeric_limits<double>::infinity();  // nothing ran yet: use the predictions
  for (const Evaluation& e : candidates_) least = std::min(least, tokens_per_s(e));
  return std::log(kFailed * least);
}

void LayoutTuner::report(std::size_t candidate, const TrialResult& result) {
  State& state = states_.at(candidate);
  KINTSUGI_CHECK(state.stage != Stage::Done, "{} was reported twice",
                 to_string(candidates_[candidate].layout));
  if (state.stage == Stage::Untried) --untried_;
  state.stage = Stage::Done;
  if (result.ran())
    slowest_ = slowest_ == 0 ? result.tokens_per_s : std::min(slowest_, result.tokens_per_s);
  state.value = value_of(result);
  if (state.question) search_->answer(*state.question, state.value);
}

void LayoutTuner::start_search() {
  std::vector<std::pair<PointSearch::Point, double>> known;
  for (const State& state : states_)
    if (state.stage == Stage::Done) known.emplace_back(state.point, state.value);
  search_ = std::make_unique<PointSearch>(last_, known);
}

std::size_t LayoutTuner::choose(const PointSearch::Point& point) const {
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].stage != Stage::Untried) continue;
    const double distance = squared_distance(states_[i].point, point) -
                            kModelWeight * std::log(tokens_per_s(candidates_[i]));
    if (distance >= least) continue;
    least = distance;
    best = i;
  }
  return best;
}

std::size_t LayoutTuner::take(std::size_t candidate) {
  states_[candidate].stage = Stage::Running;
  --untried_;
  return candidate;
}

std::optional<std::size_t> LayoutTuner::next() {
  if (untried_ == 0) return std::nullopt;
  if (!search_) {
    for (std::size_t i = 0; i < seeds_; ++i)
      if (states_[i].stage == Stage::Untried) return take(i);
    // dlib gets known results at its start; later it accepts only answers to its questions.
    for (std::size_t i = 0; i < seeds_; ++i)
      if (states_[i].stage == Stage::Running) return std::nullopt;
    start_search();
  }
  const PointSearch::Question question = search_->ask();
  const std::size_t candidate = take(choose(question.point));
  states_[candidate].question = question.id;
  return candidate;
}

}  // namespace kintsugi
