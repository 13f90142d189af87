#pragma once

#include <string>
#include <vector>

#include "cli/plan/search.h"

namespace kintsugi {

// kintsugi plan --tune: measures layouts of a run in short real trials.
struct PlanTuneOptions {
  std::string config = {};                  // the run's YAML file
  std::vector<std::string> overrides = {};  // --set
  int trials = 30;
  int steps = 6;
  int at_once = 1;
  std::string launch = {};  // empty: mpirun, or no launcher for one rank
  std::string timeout = "5min";
  double within = 2;
  std::string log = {};
  PlanSearchOptions search = {};  // machine, GPUs, limits, --emit
};
void plan_tune(const PlanTuneOptions& options);

}  // namespace kintsugi
