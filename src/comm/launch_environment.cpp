#include "comm/launch_environment.h"

#include <cstdlib>
#include <sstream>

#include "comm/socket.h"

namespace kintsugi {

int launched_ranks(const std::function<const char*(const char*)>& variable) {
  // Open MPI's mpirun; MPICH's and Intel's; srun. SLURM_NTASKS is not used: it is also set in a
  // batch script, which runs once.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* text = variable(name);
    const int ranks = text == nullptr ? 0 : std::atoi(text);
    if (ranks > 0) return ranks;
  }
  return variable("PMIX_RANK") != nullptr ? 0 : 1;
}

bool another_rank_reports(const std::function<const char*(const char*)>& variable) {
  if (launched_ranks(variable) == 1) return false;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_RANK"}) {
    const char* text = variable(name);
    if (text == nullptr) continue;
    const std::string rank = text;
    if (rank == "0") return false;
    // `mpirun -np 2 a : -np 2 b`: ranks 0 and 2 are the first of their commands.
    const char* firsts = variable("OMPI_FIRST_RANKS");
    std::istringstream words(firsts == nullptr ? "" : firsts);
    for (std::string first; words >> first;)
      if (first == rank) return false;
    return true;
  }
  return false;
}

std::string node_name(const std::function<const char*(const char*)>& variable) {
  const char* name = variable("SLURMD_NODENAME");
  return name != nullptr && *name != '\0' ? name : host_name();
}

namespace {

const char* environment(const char* name) { return std::getenv(name); }

}  // namespace

int launched_ranks() { return launched_ranks(environment); }
bool another_rank_reports() { return another_rank_reports(environment); }
std::string node_name() { return node_name(environment); }

}  // namespace kintsugi
