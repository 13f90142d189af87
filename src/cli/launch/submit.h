#pragma once

#include <vector>

#include "cli/launch/prepare.h"

namespace kintsugi {

// Writes RUN_DIR/launch of each run and submits it to Slurm. If one cannot be submitted, those
// before it are cancelled, and all files are as before.
void submit_runs(std::vector<PreparedRun>& runs);

// Runs them here, one after the other. Returns the exit code of the command.
int run_locally(std::vector<PreparedRun>& runs);

// Prints what would be submitted.
void print_runs(const std::vector<PreparedRun>& runs);

}  // namespace kintsugi
