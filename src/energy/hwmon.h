#pragma once

#include "energy/find_meters.h"

namespace kintsugi {

// The power of NVIDIA Grace CPUs and GH200 modules in sys/class/hwmon (ACPI power meters).
void add_hwmon(const MeterSearch& search, FoundMeters& found);

}  // namespace kintsugi
