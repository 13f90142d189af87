#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config/config.h"

namespace kintsugi {

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
