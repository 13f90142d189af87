#pragma once

#include "energy/find_meters.h"

namespace kintsugi {

// The counters of CPUs in sys/class/powercap/intel-rapl:* (Intel and AMD): one meter per package,
// which adds up its dies, and one for all DRAM zones (Intel).
void add_rapl(const MeterSearch& search, FoundMeters& found);

}  // namespace kintsugi
