#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/trainer/run_context.h"

namespace kintsugi {

// How evenly the tokens of a step chose the experts of a layer.
struct ExpertLoad {
  double most = 0;        // of the busiest expert, divided by the mean
  double entropy = 0;     // of the choices, divided by that of an even choice
  std::int64_t idle = 0;  // experts with less than a hundredth of the mean
};
ExpertLoad load_of(std::span<const double> counts);

// Follows the loads of the experts: moves the biases of routers (train.balance.bias_speed), keeps
// the counts of the balance loss (train.balance.scope), and records the loads
// (train.balance.statistics_every). All ranks decide alike.
class ExpertLoads {
 public:
  explicit ExpertLoads(RunContext& run) : run_(run) {}

  void after_step(const StepResult& result, std::int64_t step);  // all ranks call it

 private:
  bool are_due(std::int64_t step) const;
  void record(std::span<const double> counts, std::span<const double> dropped);
  RunContext& run_;
  bool warned_ = false;  // of a layer with idle experts
};

}  // namespace kintsugi
