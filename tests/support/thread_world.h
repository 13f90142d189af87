#pragma once

#include <functional>

#include "comm/communicator.h"

namespace kintsugi {

// Runs the function on `ranks` threads of this process, each with its own World, and rethrows the
// first exception. After an exception, the other ranks' collectives throw Failure, so that no rank
// hangs. A deadlock of all ranks is a Failure too.
//
// Stricter than a real network: results appear in wait(), and until then the destination holds NaN
// (bytes of 0xFF). A tensor that was written between call and wait, or a call that was never waited
// for, is a Failure. Sums are in rank order, bit-identical to MPI with comm.deterministic.
void run_ranks(int ranks, const std::function<void(World&)>& function);

}  // namespace kintsugi
