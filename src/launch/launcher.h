#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/job_script.h"

namespace kintsugi {

// The words that start the ranks of a Slurm job: JobDescription::launcher. Checks --cpu-bind and
// the machine's own masks. UserError otherwise.
std::vector<std::string> launcher_of(const Machine& machine, const LaunchOptions& options,
                                     const JobDescription& job, const JobPaths& paths,
                                     const std::optional<Topology>& topology);

}  // namespace kintsugi
