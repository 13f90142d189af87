#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_failure.h"
#include "train/config/config.h"
#include "train/engine.h"

namespace kintsugi {

// The weights are no longer usable. All ranks throw it together.
class Diverged : public SharedFailure {
 public:
  explicit Diverged(std::string text)
      : SharedFailure({.kind = FailureKind::Diverged, .text = std::move(text)}) {}
};

// Detects divergence. It uses only values that are the same on all ranks, so all ranks decide
// alike. A step is healthy if its loss and its gradient norm are finite; then its update was
// applied, unless it was an outlier.
class RunHealth {
 public:
  RunHealth() = default;
  // `minimum_scale`: the minimum of the dynamic loss scale, if there is one.
  RunHealth(std::int64_t max_skipped, std::optional<double> minimum_scale)
      : max_skipped_(max_skipped), minimum_scale_(minimum_scale) {}

  // Number of consecutive steps up to now that were not healthy; kept across a resume.
  std::int64_t skipped() const { return skipped_; }
  // Number of consecutive steps up to now whose update was not applied and that were outliers
  // (optimizer.skip_step). The weights are healthy.
  std::int64_t outliers() const { return outliers_; }
  void restore(std::int64_t skipped, std::int64_t outliers) {
    skipped_ = skipped;
    outliers_ = outliers;
  }
  bool healthy() const { return skipped_ == 0; }

  // Call after each step with the loss scale of that step. Returns why the run has diverged, or "".
  std::string after_step(Engine& engine, const StepResult& result, double loss_scale);

 private:
  std::int64_t max_skipped_ = 1;
  std::optional<double> minimum_scale_;
  std::int64_t skipped_ = 0, outliers_ = 0;
};

// Checks the weights of all ranks; all ranks call it.
bool weights_are_finite(Engine& engine);

// Decides from the losses of the last steps what a spike is (train.spikes): more than `threshold`
// robust standard deviations above their median. The deviation is 1.4826 times the median distance
// from the median, which single outliers do not raise. All ranks have the same losses, so they
// decide alike.
//
// OutlierHistory (optimizer.skip_step) decides before the update, from mean and deviation, and
// skips the update of single steps. This decides after the step, about the run.
class SpikeHistory {
 public:
  struct State {
    std::vector<double> losses = {};  // of the last steps, the oldest first
    std::int64_t rewinds = 0;         // in a row
    std::int64_t last_step = 0;       // of the last spike that caused a rewind
    bool operator==(const State&) const = default;
  };

  SpikeHistory() = default;
  explicit SpikeHistory(const SpikeOptions& options) : options_(options) {}

  // How many robust deviations the loss is above the median; 0 until half of the window is filled.
  double deviations(double loss) const;
  bool is_spike(double loss) const {
    return options_.action != SpikeAction::None && deviations(loss) > options_.threshold;
  }
  double median_loss() const;
  void add(double loss);  // a loss that is not finite is not added
  // The number of the next rewind in a row, after a spike at `step`. Steps that are further from
  // the last spike than the window begin a new row.
  std::int64_t next_rewind(std::int64_t step) const;
  void note_rewind(std::int64_t step);

  const State& state() const { return state_; }
  void restore(State state);  // keeps the last `window` losses

 private:
  void shorten();

  SpikeOptions options_;
  State state_;
};

}  // namespace kintsugi
