#pragma once

#include "energy/find_meters.h"

namespace kintsugi {

// The watts that the user gave for the whole node.
void add_estimate(const MeterSearch& search, FoundMeters& found);

}  // namespace kintsugi
