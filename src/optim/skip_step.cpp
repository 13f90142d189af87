#include "optim/skip_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kintsugi {

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    state_.good_steps = 0;
    state_.hysteresis -= 1;
    if (state_.hysteresis <= 0) state_.scale = std::max(state_.scale * 0.5, options_.minimum);
    return;
  }
  state_.good_steps += 1;
  if (state_.good_steps < options_.growth_interval) return;
  state_.good_steps = 0;
  state_.hysteresis = options_.hysteresis;
  state_.scale *= 2.0;
}

namespace {

// Values that differ by rounding only are never outliers, even if all others are equal.
constexpr double kRounding = 1e-6;

double limit_of(const std::vector<double>& values, double deviations) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return mean + deviations * std::sqrt(squares / (count - 1)) + kRounding * std::abs(mean);
}

}  // namespace

bool StepLimits::any() const { return std::isfinite(loss) || std::isfinite(gradient_norm); }

StepLimits OutlierHistory::limits() const {
  const auto needed = static_cast<std::size_t>(std::max<std::int64_t>(2, options_.window / 2));
  if (options_.deviations == 0 || state_.losses.size() < needed) return {};
  return {limit_of(state_.losses, options_.deviations),
          limit_of(state_.norms, options_.deviations)};
}

void OutlierHistory::add(double loss, double gradient_norm) {
  if (options_.deviations == 0 || !std::isfinite(loss) || !std::isfinite(gradient_norm)) return;
  state_.losses.push_back(loss);
  state_.norms.push_back(gradient_norm);
  shorten();
}

void OutlierHistory::restore(State state) {
  if (options_.deviations == 0) return;
  state_ = std::move(state);
  shorten();
}

void OutlierHistory::shorten() {
  for (std::vector<double>* values : {&state_.losses, &state_.norms})
    if (const auto extra = static_cast<std::int64_t>(values->size()) - options_.window; extra > 0)
      values->erase(values->begin(), values->begin() + extra);
}

}  // namespace kintsugi
