#pragma once

#include <optional>
#include <string>

#include "launch/job_script.h"

namespace kintsugi {

// --mpi of srun, "" if it is not given, and the key of the machine file that has it.
struct MpiChoice {
  std::string value;
  std::string key;
};
MpiChoice mpi_of(const LaunchSpec& spec, bool container);

// The words that start the ranks of a Slurm job: JobDescription::launcher. Checks --cpu-bind and
// the machine's own masks. `topology` replaces that of the machine. UserError.
ScriptParts launcher_parts(const Machine& machine, const LaunchOptions& options,
                           const JobDescription& job, const JobPaths& paths,
                           const std::optional<Topology>& topology = {});

}  // namespace kintsugi
