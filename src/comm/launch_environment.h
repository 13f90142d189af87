#pragma once

#include <functional>

namespace kintsugi {

// How many ranks the launcher (mpirun, srun) that started this process says there are: 1 without a
// launcher, 0 where there is one that does not tell. `variable` looks up the environment.
int launched_ranks(const std::function<const char*(const char*)>& variable);
int launched_ranks();

// Whether another rank was started with the same command and reports for this one: all but the
// first rank of each command that a launcher was given.
bool another_rank_reports(const std::function<const char*(const char*)>& variable);
bool another_rank_reports();

}  // namespace kintsugi
