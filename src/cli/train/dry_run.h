#pragma once

#include <string>

#include "plan/machines/machine.h"
#include "plan/search/job.h"
#include "train/config/config.h"

namespace kintsugi {

// Converts a run configuration to the planner's input.
PlanJob plan_job(const RunConfig& config);

// kintsugi train --dry-run: predicts memory and time of a configuration on a machine.
struct DryRunOptions {
  std::string machine = {};
  int gpus = 0;  // 0: as many as the layout needs
};
void dry_run(const RunConfig& config, const DryRunOptions& options);

// UserError if one stage does not fit the GPUs of a machine. The layout is not `auto`.
void check_fits(const RunConfig& stage, const Machine& machine, int ranks);

}  // namespace kintsugi
