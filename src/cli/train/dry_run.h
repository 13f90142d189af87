#pragma once

#include <string>

#include "plan/search/job.h"
#include "train/config/config.h"

namespace kintsugi {

// What a configuration trains, for the planner.
PlanJob plan_job(const RunConfig& config);

// kintsugi train --dry-run: what a configuration would take on a machine.
struct DryRunOptions {
  std::string machine = {};
  int gpus = 0;  // 0: as the layout says
};
void dry_run(const RunConfig& config, const DryRunOptions& options);

}  // namespace kintsugi
