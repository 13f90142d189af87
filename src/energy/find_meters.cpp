#include "energy/find_meters.h"

#include "energy/device_meters.h"

namespace kintsugi {

FoundMeters find_meters(const MeterSearch& search) {
  FoundMeters found;
  add_nvml(search, found);
  add_amdsmi(search, found);
  add_ear(search, found);
  add_slurm(search, found);
  return found;
}

}  // namespace kintsugi
