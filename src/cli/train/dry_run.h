#pragma once

#include <string>

#include "energy/carbon.h"
#include "plan/machines/machine.h"
#include "plan/search/job.h"
#include "train/config/config.h"

namespace kintsugi {

bool offloads(const OffloadConfig& offload);  // anything
// What the planner counts of it: everything except activations, with updates on the device.
StateOffload planned_offload(const OffloadConfig& offload);
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

// What is known about the energy of a run on `ranks` ranks before it starts (`gpus`: each with a
// GPU): energy.machine, the values that replace its own, and the planner's prediction for each
// stage. UserError if there is no such machine; where the planner has no answer, a warning.
EnergyContext energy_context(const RunConfig& run, int ranks, bool gpus = true);

// "energy.machine LUMI-G: predicted 5.3 kJ and 3.2 kW of the GPUs in a step, …", for the log.
std::string prediction_text(const EnergyContext& context);

}  // namespace kintsugi
