// Replaces comm/mpi/ in a binary built without MPI.
#include "comm/launch_environment.h"
#include "comm/mpi/mpi_world.h"
#include "core/error.h"

namespace kintsugi {

std::string mpi_library_version() { return ""; }
bool started_by_mpi() { return launched_ranks() != 1; }

std::unique_ptr<World> make_mpi_world(Trace*) {
  user_error(
      "this binary was built without MPI: build it where MPI is installed, or start one process "
      "without mpirun");
}

void sum_in_rank_order(World&, bool) {}

}  // namespace kintsugi
