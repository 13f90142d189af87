#include "energy/find_meters.h"

#include <exception>

#include "energy/amd_sysfs.h"
#include "energy/device_meters.h"
#include "energy/estimate.h"
#include "energy/hwmon.h"
#include "energy/pci.h"
#include "energy/pm_counters.h"
#include "energy/rapl.h"

namespace kintsugi {
namespace {

struct MeterSource {
  const char* name;
  void (*add)(const MeterSearch&, FoundMeters&);
};
// The order of the meters in a list; choose_meters decides which of them are used.
constexpr MeterSource kMeterSources[] = {
    {"pm_counters", add_pm_counters},  //
    {"nvml", add_nvml},                //
    {"amdsmi", add_amdsmi},            //
    {"amdsmi", add_amd_sysfs},         // only without meters of the library
    {"rapl", add_rapl},                //
    {"hwmon", add_hwmon},              //
    {"ear", add_ear},                  //
    {"slurm", add_slurm},              //
    {"estimate", add_estimate},        //
};

}  // namespace

FoundMeters find_meters(const MeterSearch& search) {
  FoundMeters found;
  found.node_gpus = count_gpus(search.root);
  for (const MeterSource& source : kMeterSources) try {
      source.add(search, found);
    } catch (const std::exception& error) {
      found.missing.push_back({source.name, error.what()});
    }
  return found;
}

}  // namespace kintsugi
