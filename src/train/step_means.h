#pragma once

#include <cstdint>
#include <optional>

#include "train/records/run_log.h"

namespace kintsugi {

// Means over the steps since the last log line. A single step varies with its batch and with other
// load on the machine.
class StepMeans {
 public:
  void add(const StepRecord& record, std::int64_t tokens) {
    if (record.skipped.empty()) {
      loss_ += record.loss;
      norm_ += record.gradient_norm;
      margin_ += record.reward_margin.value_or(0);
      accuracy_ += record.reward_accuracy.value_or(0);
    } else {
      ++skipped_;
      if (record.skipped == "outlier") ++outliers_;
    }
    ++steps_;
    tokens_ += tokens;
    seconds_ += record.step_time_s;
    joules_ += record.energy_j.value_or(0);
    if (!record.energy_j) ++unmetered_;
  }
  void clear() { *this = {}; }

  std::int64_t steps() const { return steps_; }
  std::int64_t skipped() const { return skipped_; }  // without a finite loss and norm, or outliers
  std::int64_t outliers() const { return outliers_; }  // optimizer.skip_step
  double loss() const { return loss_ / applied(); }
  double gradient_norm() const { return norm_ / applied(); }
  double reward_margin() const { return margin_ / applied(); }  // with objective dpo
  double reward_accuracy() const { return accuracy_ / applied(); }
  double step_time_s() const { return seconds_ / static_cast<double>(steps_); }
  double tokens_per_s() const { return static_cast<double>(tokens_) / seconds_; }
  // Empty: some steps were not metered.
  std::optional<double> joules_per_token() const {
    if (unmetered_ > 0 || tokens_ == 0) return {};
    return joules_ / static_cast<double>(tokens_);
  }

 private:
  double applied() const { return static_cast<double>(steps_ - skipped_); }

  std::int64_t steps_ = 0, skipped_ = 0, outliers_ = 0, tokens_ = 0, unmetered_ = 0;
  double loss_ = 0, norm_ = 0, margin_ = 0, accuracy_ = 0, seconds_ = 0, joules_ = 0;
};

}  // namespace kintsugi
