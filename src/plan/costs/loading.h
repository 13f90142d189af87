#pragma once

#include "plan/machines/machine.h"
#include "plan/search/job.h"

namespace kintsugi {

// Seconds in which the tokens of one step come from storage and are made ready on the hosts. They
// are read ahead: a step waits only for what takes longer than itself.
double loading_s(const PlanJob& job, const Layout& layout, const Machine& machine);

}  // namespace kintsugi
