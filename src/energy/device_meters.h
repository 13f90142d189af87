#pragma once

#include "energy/find_meters.h"

namespace kintsugi {

// Meters that are read through libraries and commands. Each adds the meters of one source, or why
// it has none; none of them throws for what a machine may have or lack.
void add_nvml(const MeterSearch& search, FoundMeters& found);    // NVIDIA GPUs
void add_amdsmi(const MeterSearch& search, FoundMeters& found);  // AMD GPUs, by ROCm's library
void add_ear(const MeterSearch& search, FoundMeters& found);     // Energy Aware Runtime: the node
void add_slurm(const MeterSearch& search, FoundMeters& found);   // the node, while a step runs

}  // namespace kintsugi
