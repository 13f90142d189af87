#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/costs/footprint.h"
#include "train/config/config.h"

namespace kintsugi {

// What a task of a campaign will probably need.
struct TaskForecast {
  std::optional<RunFootprint> run = {};  // of the planner
  double limit_gpu_hours = 0;            // of a command: the time limit of its job; 0: none
  std::string unknown = {};              // why there is no figure
  double left = 1;                       // fraction of the run that is left

  double gpu_hours() const { return run ? left * run->gpu_hours : 0; }
  // At the upper end of the interval. Budgets count this.
  double most_gpu_hours() const { return run ? gpu_hours() * run->within : limit_gpu_hours; }
};

// The planner's prediction for a whole run. A reason instead of figures where it has none.
TaskForecast forecast_run(const RunConfig& config, const std::string& machine, std::int64_t ranks);

}  // namespace kintsugi
