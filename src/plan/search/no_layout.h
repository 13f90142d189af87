#pragma once

#include <functional>
#include <string>

#include "plan/search/search.h"

namespace kintsugi {

// The error message for a search that found no layout that fits. It names what would help: fewer or
// other limits, more GPUs or GPUs with more memory. `job_on` gives the job for another number of
// GPUs.
std::string why_nothing_fits(Planner& planner, const SearchLimits& limits,
                             const SearchResult& result, const JobOn& job_on);

}  // namespace kintsugi
