#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  // This process will load RCCL, and with it ROCm SMI: beside that, AMD SMI frees memory twice when
  // the process ends.
  bool rccl = false;

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

// Why the second die of an AMD module has no meter of its own: the first one reports for both.
// `first`: its number in the run; empty: the run does not use it, so that nothing meters this one.
FoundMeters::Missing second_die(const std::string& scope, std::optional<std::size_t> first,
                                const std::string& first_pci);

// Adds a meter, or why it cannot be read.
void add_readable(std::unique_ptr<Meter> meter, FoundMeters& found);

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

// The value of an environment variable; empty: it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// How much of the node belongs to this process's Slurm job.
struct NodeShare {
  std::int64_t job_cpus = 0, node_cpus = 0;  // 0: unknown
  std::int64_t node_cores = 0;               // each of one or more CPUs (SMT); 0: unknown

  // Whether counters of the whole node count other jobs too. Not so without Slurm, or if the number
  // of CPUs is unknown, or if the job has one CPU of each core.
  bool shared() const;
  // "the job has 32 of 128 CPUs of this node: …"; "" unless shared.
  std::string reason() const;
};
NodeShare find_node_share(const std::filesystem::path& root,
                          const Environment& environment = process_environment());

// The CPUs per node in SLURM_JOB_CPUS_PER_NODE: {64, 64, 32} of "64(x2),32". Empty if the text has
// another form.
std::vector<std::int64_t> cpus_per_node(std::string_view text);
// The number of CPUs in a list such as "0-63,128-191"; 0 if the text has another form.
std::int64_t count_cpus(std::string_view list);

// The meters of one level of a node: all from one source, so that nothing is counted twice.
struct LevelMeters {
  std::string source = {};               // "": none
  std::vector<std::size_t> meters = {};  // to add up: indices into FoundMeters::meters
  std::string reason = {};               // why there is none
  std::string uncovered = {};            // what the meters leave out; "": nothing
};

using ChosenMeters = ByLevel<LevelMeters>;

// The best source for each level: one that leaves nothing out before others, counters before
// integrated power, and power before estimates. If the run uses only some of the node's GPUs, only
// sources that know which ones are used.
ChosenMeters choose_meters(const FoundMeters& found, const MeterSearch& search,
                           const NodeShare& share);

}  // namespace kintsugi
