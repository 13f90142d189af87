#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/rank_failure.h"
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

}  // namespace kintsugi
