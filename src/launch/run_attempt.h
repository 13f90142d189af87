#pragma once

#include "launch/job_description.h"

namespace kintsugi {

// Starts the ranks of a job once, on all its nodes, and waits for them. A first SIGTERM, SIGUSR1,
// SIGHUP or SIGINT asks the ranks to save and stop; a second SIGINT ends them at once. Returns an
// exit code of core/exit_code.h: ranks that a signal killed have failed, unless they were asked to
// stop. Codes above 128 are left to job scripts: they say that the supervisor itself was killed.
int run_attempt(const JobDescription& job);

// Runs a script in a process group of its own, which is sent the signals of this process.
int run_script(const std::filesystem::path& script);

}  // namespace kintsugi
