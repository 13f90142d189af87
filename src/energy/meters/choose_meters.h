#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "energy/meters/find_meters.h"

namespace kintsugi {

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

struct ChosenMeters {
  std::array<LevelMeters, kEnergyLevels.size()> levels = {};
  const LevelMeters& operator[](EnergyLevel level) const {
    return levels[static_cast<std::size_t>(level)];
  }
};

// The best source for each level: one that leaves nothing out before others, counters before
// integrated power, and power before estimates. If the run uses only some of the node's GPUs, only
// sources that know which ones are used.
ChosenMeters choose_meters(const FoundMeters& found, const MeterSearch& search,
                           const NodeShare& share);

}  // namespace kintsugi
