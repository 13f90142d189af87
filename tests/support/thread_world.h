#pragma once

#include <functional>

#include "comm/communicator.h"

namespace kintsugi {

// Runs the function on `ranks` threads of this process, each with its own World, and rethrows the
// first exception; the other ranks' collectives then end in a Failure, so nobody hangs. Ranks that
// all wait for something that nobody will bring are a Failure too.
//
// Stricter than a real network: results appear in wait() and the destination holds NaN (bytes of
// 0xFF) until then; a tensor that was touched between call and wait, or a call that was never
// waited for, is a Failure. Sums are in rank order, to the bit those of MPI with
// comm.deterministic.
void run_ranks(int ranks, const std::function<void(World&)>& function);

}  // namespace kintsugi
