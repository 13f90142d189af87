#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "core/trace.h"

namespace kintsugi {

// Whether mpirun or srun started this process as one of several.
bool started_by_mpi();
std::string mpi_library_version();  // "Open MPI v4.1.4"; empty if not built

// All ranks of the MPI job, for tensors in host memory. Call it once per process. If the world is
// destroyed during an exception, MPI is not finalized, and the launcher ends the other ranks.
// `trace` is optional, records every call and must outlive the world.
std::unique_ptr<World> make_mpi_world(Trace* trace = nullptr);

// Sets whether groups that are split from now on reduce in rank order (comm/reduce.h): bitwise the
// same in every run, which MPI does not guarantee. No effect on a world that is not MPI's. All
// ranks must pass the same value.
void sum_in_rank_order(World& world, bool on);

}  // namespace kintsugi
