#pragma once

#include <functional>
#include <string>

#include "plan/search/search.h"

namespace kintsugi {

// Why a search found nothing that fits, and what would help: fewer limits, other limits, more GPUs
// or larger ones. One sentence for the user. `job_on` is the job on another number of GPUs.
std::string why_nothing_fits(Planner& planner, const SearchLimits& limits,
                             const SearchResult& result, const JobOn& job_on);

}  // namespace kintsugi
