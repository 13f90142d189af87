#pragma once

#include "plan/machines/machine.h"
#include "plan/search/job.h"

namespace kintsugi {

// Seconds to read the tokens of one step from storage and to prepare them on the hosts. Loading is
// ahead of training: a step waits only if loading takes longer than the step.
double loading_s(const PlanJob& job, const Layout& layout, const Machine& machine);

}  // namespace kintsugi
