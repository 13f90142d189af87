#pragma once

#include <string>

namespace kintsugi {

// kintsugi plan --schedule … --stages …: draws a pipeline schedule.
struct PlanScheduleOptions {
  static constexpr int kUnset = -1;
  std::string schedule = "1f1b";
  int stages = kUnset;
  int micro_batches = kUnset;
  int chunks = 1;
  double backward_ratio = 2;
  std::string svg = {};
  bool as_json = false, overwrite = false;
};
void plan_schedule(const PlanScheduleOptions& options);

}  // namespace kintsugi
