#pragma once

#include "energy/find_meters.h"

namespace kintsugi {

// The counters of HPE Cray EX nodes in sys/cray/pm_counters: the node, its CPUs, its memory, and
// each GPU module (one for both dies of an MI250X).
void add_pm_counters(const MeterSearch& search, FoundMeters& found);

}  // namespace kintsugi
