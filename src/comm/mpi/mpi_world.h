#pragma once

#include <memory>

#include "comm/communicator.h"
#include "core/trace.h"

namespace kintsugi {

// Whether mpirun or srun started this process as one of several.
bool started_by_mpi();

// All ranks of the MPI job, for tensors in host memory. Once per process. Its collectives are MPI's
// own. If it goes away while an exception flies, it leaves MPI as it is: the launcher then ends the
// other ranks.
// `trace`, if any, is told of every call and outlives it.
std::unique_ptr<World> make_mpi_world(Trace* trace = nullptr);

// Whether groups that are split from now on sum in rank order (comm/reduce.h): to the bit the same
// in every run, which MPI does not promise. Nothing in another world. All ranks choose the same.
void sum_in_rank_order(World& world, bool on);

}  // namespace kintsugi
