#include "train/spikes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/statistics.h"

namespace kintsugi {
namespace {

constexpr double kNormal = 1.4826;       // median distance to standard deviation
constexpr double kSpikeRounding = 1e-6;  // losses that differ by rounding only are no spikes

}  // namespace

double SpikeHistory::median_loss() const { return median(state_.losses); }

double SpikeHistory::deviations(double loss) const {
  const auto needed = static_cast<std::size_t>(std::max<std::int64_t>(2, options_.window / 2));
  if (state_.losses.size() < needed || !std::isfinite(loss)) return 0;
  const double middle = median_loss();
  std::vector<double> distances;
  for (const double one : state_.losses) distances.push_back(std::abs(one - middle));
  const double deviation =
      std::max({kNormal * median(std::move(distances)), kSpikeRounding * std::abs(middle), 1e-300});
  return (loss - middle) / deviation;
}

void SpikeHistory::add(double loss) {
  if (options_.action == SpikeAction::None || !std::isfinite(loss)) return;
  state_.losses.push_back(loss);
  shorten();
}

std::int64_t SpikeHistory::next_rewind(std::int64_t step) const {
  const bool again = state_.rewinds > 0 && step <= state_.last_step + options_.window;
  return again ? state_.rewinds + 1 : 1;
}

void SpikeHistory::note_rewind(std::int64_t step) {
  state_.rewinds = next_rewind(step);
  state_.last_step = step;
}

void SpikeHistory::restore(State state) {
  if (options_.action == SpikeAction::None) return;
  state_ = std::move(state);
  shorten();
}

void SpikeHistory::shorten() {
  const auto extra = static_cast<std::int64_t>(state_.losses.size()) - options_.window;
  if (extra > 0) state_.losses.erase(state_.losses.begin(), state_.losses.begin() + extra);
}

}  // namespace kintsugi
