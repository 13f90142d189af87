#pragma once

#include <cstdint>

#include "train/trainer/run_context.h"

namespace kintsugi {

// UserError if the device, or this model on it, has no fp8 matmuls.
void check_fp8_device(Backend& backend, const RunConfig& config);

// What the fp8 matmuls of a run lose (train.fp8.statistics_every). All ranks decide alike.
class Fp8Statistics {
 public:
  explicit Fp8Statistics(RunContext& run) : run_(run) {}

  bool are_due(std::int64_t step) const;
  void record();  // of the last step; all ranks call it

 private:
  RunContext& run_;
  bool warned_ = false;  // of outliers of the activation
};

}  // namespace kintsugi
