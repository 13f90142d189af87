#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace kintsugi {

struct SkipStepOptions {
  double deviations = 0;  // 0: no step is skipped as an outlier
  std::int64_t window = 128;
  bool operator==(const SkipStepOptions&) const = default;
};

// A step whose loss or gradient norm is above its limit changes nothing.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();
  double gradient_norm = std::numeric_limits<double>::infinity();
  bool any() const;  // whether one of them is finite
};

// Decides from the last steps what an outlier is: more than `deviations` standard deviations above
// the mean of the last `window` steps. The history includes skipped steps. So if the loss rises for
// good, for example because the data changes, the limits follow after a few skipped steps.
class OutlierHistory {
 public:
  struct State {
    std::vector<double> losses, norms;  // the oldest first
    bool operator==(const State&) const = default;
  };

  OutlierHistory() = default;
  explicit OutlierHistory(const SkipStepOptions& options) : options_(options) {}

  // The limits of the next step; none until half of the window is filled.
  StepLimits limits() const;
  // Adds the results of a step. Values that are not finite are not added.
  void add(double loss, double gradient_norm);

  const State& state() const { return state_; }
  void restore(State state);  // keeps the last `window` steps

 private:
  void shorten();

  SkipStepOptions options_;
  State state_;  // empty without deviations
};

}  // namespace kintsugi
