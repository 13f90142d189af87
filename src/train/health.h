#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/exchange.h"
#include "train/engine.h"

namespace kintsugi {

// The run cannot go on from its own weights. All ranks throw it together.
class Diverged : public SharedFailure {
 public:
  using SharedFailure::SharedFailure;
};

// Whether a run still learns. It decides from values that all ranks share, so all decide alike. A
// step is healthy if its loss and its gradient norm are finite: then its update was applied.
class RunHealth {
 public:
  RunHealth() = default;
  // `minimum_scale` is that of a dynamic loss scale, if there is one.
  RunHealth(std::int64_t max_skipped, std::optional<double> minimum_scale)
      : max_skipped_(max_skipped), minimum_scale_(minimum_scale) {}

  // Steps in a row until now that were not healthy; a resume goes on counting.
  std::int64_t skipped() const { return skipped_; }
  void restore(std::int64_t skipped) { skipped_ = skipped; }
  bool healthy() const { return skipped_ == 0; }

  // After each step, with the loss scale that it used. Returns why the run has diverged, or
  // nothing.
  std::string after_step(Engine& engine, const StepResult& result, double loss_scale);

 private:
  std::int64_t max_skipped_ = 1;
  std::optional<double> minimum_scale_;
  std::int64_t skipped_ = 0;
};

// Of all ranks; all call it together.
bool weights_are_finite(Engine& engine);

}  // namespace kintsugi
