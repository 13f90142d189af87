#pragma once

#include <string>
#include <vector>

#include "cli/launch/prepare.h"
#include "launch/array_jobs.h"

namespace kintsugi {

// Submits job arrays that run a command of this program, one for each of its stages and after the
// one before it, or prints their scripts. `after`: ids of jobs that the first one waits for.
void launch_arrays(const LaunchRequest& request, ArrayRequest array,
                   const std::vector<std::string>& after);

}  // namespace kintsugi
