#pragma once

#include "cli/job.h"
#include "launch/doctor/doctor.h"
#include "train/config/config.h"

namespace kintsugi {

// The options that describe this rank: node, threads (0: all cores) and GPU. A check that hangs
// ends the job.
DoctorOptions options_of_rank(Job& job, Backend& backend, std::int64_t threads);

// Sets what a run expects of its directory: space for one checkpoint, and for all that it keeps.
void expect_checkpoints(const RunConfig& config, DoctorOptions& options);

// The cheap part of `kintsugi doctor`, before the first step of a run: binding, devices and run
// directory, and between GPUs of several nodes the network. All ranks call it, and all throw if one
// has an error. Bad nodes are added to the node ledger.
void run_preflight(const RunConfig& config, Job& job, Backend& backend, World& devices);

}  // namespace kintsugi
