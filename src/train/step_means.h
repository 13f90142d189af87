#pragma once

#include <cmath>
#include <cstdint>

#include "train/run_log.h"

namespace kintsugi {

// What the lines of the log show: the steps since the last line, in the mean. One step alone
// depends on its batch, and on what else the machine did.
class StepMeans {
 public:
  void add(const StepRecord& record, std::int64_t tokens) {
    if (std::isfinite(record.loss) && std::isfinite(record.gradient_norm)) {
      loss_ += record.loss;
      norm_ += record.gradient_norm;
    } else {
      ++skipped_;
    }
    ++steps_;
    tokens_ += tokens;
    seconds_ += record.step_time_s;
  }
  void clear() { *this = {}; }

  std::int64_t steps() const { return steps_; }
  std::int64_t skipped() const { return skipped_; }  // overflowed in fp16: they have no loss
  double loss() const { return loss_ / taken(); }
  double gradient_norm() const { return norm_ / taken(); }
  double step_time_s() const { return seconds_ / static_cast<double>(steps_); }
  double tokens_per_s() const { return static_cast<double>(tokens_) / seconds_; }

 private:
  double taken() const { return static_cast<double>(steps_ - skipped_); }

  std::int64_t steps_ = 0, skipped_ = 0, tokens_ = 0;
  double loss_ = 0, norm_ = 0, seconds_ = 0;
};

}  // namespace kintsugi
