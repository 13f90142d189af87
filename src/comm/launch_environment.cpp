#include "comm/launch_environment.h"

#include <cstdlib>

namespace kintsugi {

int launched_ranks(const std::function<const char*(const char*)>& variable) {
  // Open MPI's mpirun; MPICH's and Intel's; srun. A batch script's own SLURM_NTASKS is no sign: the
  // script itself runs once.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* text = variable(name);
    const int ranks = text == nullptr ? 0 : std::atoi(text);
    if (ranks > 0) return ranks;
  }
  return variable("PMIX_RANK") != nullptr ? 0 : 1;
}

int launched_ranks() {
  return launched_ranks([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace kintsugi
