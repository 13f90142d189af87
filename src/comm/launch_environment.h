#pragma once

#include <functional>
#include <string>

namespace kintsugi {

// The number of ranks according to the launcher (mpirun, srun) of this process: 1 without a
// launcher, 0 if the launcher does not say. `variable` looks up an environment variable.
int launched_ranks(const std::function<const char*(const char*)>& variable);
int launched_ranks();

// Whether another rank reports errors for this one: true for all but the first rank of each command
// that the launcher was given.
bool another_rank_reports(const std::function<const char*(const char*)>& variable);
bool another_rank_reports();

// The name by which the job scheduler knows this node (srun --exclude): Slurm's, or the host name.
std::string node_name(const std::function<const char*(const char*)>& variable);
std::string node_name();

}  // namespace kintsugi
