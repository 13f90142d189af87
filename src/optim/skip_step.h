#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace kintsugi {

struct LossScaleOptions {
  double initial = 4294967296.0;  // 2^32
  double minimum = 1.0;
  std::int64_t growth_interval = 1000;
  std::int64_t hysteresis = 2;
  bool operator==(const LossScaleOptions&) const = default;
};

// Dynamic loss scaling for fp16, with Megatron's rules. The scale doubles after `growth_interval`
// good steps. An overflow skips the step and decrements the hysteresis; at 0, it also halves the
// scale. Only growth resets the hysteresis.
class LossScaler {
 public:
  struct State {
    double scale = 1.0;
    std::int64_t good_steps = 0;
    std::int64_t hysteresis = 0;
    bool operator==(const State&) const = default;
  };

  LossScaler() = default;  // a constant scale of 1, for all precisions but fp16
  explicit LossScaler(const LossScaleOptions& options)
      : options_(options), dynamic_(true), state_{options.initial, 0, options.hysteresis} {}

  double scale() const { return state_.scale; }
  bool dynamic() const { return dynamic_; }
  void update(bool overflow);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaleOptions options_;
  bool dynamic_ = false;
  State state_;
};

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
