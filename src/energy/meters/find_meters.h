#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "energy/meters/meter.h"

namespace kintsugi {

struct MeterSearch {
  // Holds sys/…; another root than / is a recorded tree, for which no command is run and only
  // libraries below it are loaded.
  std::filesystem::path root = "/";
  // PCI addresses of the GPUs to meter ("0000:1b:00.0"): gpu0 is the first one. An empty list:
  // none. nullopt: all GPUs of the node, numbered as the source does.
  std::optional<std::vector<std::string>> gpus = {};
  double node_w = 0;  // of the whole node, for an estimate; 0: none

  bool without_gpus() const { return gpus && gpus->empty(); }
};
inline constexpr const char* kNoGpuInUse = "the run uses no GPU";

// What was found, and why other sources are not used.
struct FoundMeters {
  struct Missing {
    std::string source, reason;
    // Of a meter that is known but cannot be read: "package0". Empty: the source has no such meter.
    std::string scope = {};
    bool counted = false;  // by another meter of the source: the second die of a GPU module
  };
  std::vector<std::unique_ptr<Meter>> meters = {};
  std::vector<Missing> missing = {};
  int node_gpus = 0;  // all GPUs of the node, also those that this run does not use; 0: unknown
};

// Every meter of this node. Never throws for what a machine may have or lack. Sources are asked at
// the same time; one that does not answer within `limit_s` is missing, and its thread is left
// behind.
FoundMeters find_meters(const MeterSearch& search, double limit_s = 5);

// The sources. Each adds its meters, or why it has none; none of them throws for what a machine may
// have or lack.
// The counters of HPE Cray EX nodes in sys/cray/pm_counters: the node, its CPUs, its memory, and
// each GPU module (one for both dies of an MI250X).
void add_pm_counters(const MeterSearch& search, FoundMeters& found);
void add_nvml(const MeterSearch& search, FoundMeters& found);    // NVIDIA GPUs
void add_amdsmi(const MeterSearch& search, FoundMeters& found);  // AMD GPUs, by ROCm's library
// The power of AMD's GPUs in sys/class/drm/card*/device/hwmon, where no library gave their energy.
void add_amd_sysfs(const MeterSearch& search, FoundMeters& found);
// The counters of CPUs in sys/class/powercap/intel-rapl:* (Intel and AMD): one meter per package,
// which adds up its dies, and one for all DRAM zones (Intel).
void add_rapl(const MeterSearch& search, FoundMeters& found);
// The power of NVIDIA Grace CPUs and GH200 modules in sys/class/hwmon (ACPI power meters).
void add_hwmon(const MeterSearch& search, FoundMeters& found);
void add_ear(const MeterSearch& search, FoundMeters& found);    // Energy Aware Runtime: the node
void add_slurm(const MeterSearch& search, FoundMeters& found);  // the node, while a step runs

}  // namespace kintsugi
