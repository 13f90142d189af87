#pragma once

#include "energy/find_meters.h"

namespace kintsugi {

// The power of AMD's GPUs in sys/class/drm/card*/device/hwmon, where no library gave their energy.
void add_amd_sysfs(const MeterSearch& search, FoundMeters& found);

}  // namespace kintsugi
