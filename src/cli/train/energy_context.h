#pragma once

#include <string>

#include "energy/carbon.h"
#include "train/config/config.h"

namespace kintsugi {

// What is known about the energy of a run on `ranks` ranks before it starts (`gpus`: each with a
// GPU): energy.machine, the
// values that replace its own, and the planner's prediction for each stage. UserError if there is
// no such machine; where the planner has no answer, a warning.
EnergyContext energy_context(const RunConfig& run, int ranks, bool gpus = true);

// "energy.machine LUMI-G: predicted 5.3 kJ and 3.2 kW of the GPUs in a step, …", for the log.
std::string prediction_text(const EnergyContext& context);

}  // namespace kintsugi
