#pragma once

#include "energy/energy_report.h"
#include "report/goodput.h"

namespace kintsugi {

// Adds the energy of all attempts to a report: phases, attempts, times, steps and metered time.
// Levels without any metered time stay empty.
void add_ledger(const Goodput& goodput, EnergyReport& report);

}  // namespace kintsugi
