#pragma once

#include <memory>

#include "comm/communicator.h"
#include "core/trace.h"

namespace kintsugi {

// Whether mpirun or srun started this process as one of several.
bool started_by_mpi();

// All ranks of the MPI job, for tensors in host memory. Once per process. The ranks' sums are in
// rank order (comm/reduce.h), to the bit the same in every run. If it goes away while an exception
// flies, it leaves MPI as it is: the launcher then ends the other ranks.
// `trace`, if any, is told of every call and outlives it.
std::unique_ptr<World> make_mpi_world(Trace* trace = nullptr);

}  // namespace kintsugi
