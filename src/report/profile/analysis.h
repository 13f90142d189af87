#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/profile/breakdown.h"
#include "report/profile/exposure.h"
#include "report/profile/idle.h"
#include "report/profile/operations.h"
#include "report/profile/step_terms.h"

namespace kintsugi {

// Everything that a profile says.
struct ProfileAnalysis {
  ProfileFacts facts = {};
  std::vector<RankTrace> ranks = {};  // without their spans
  std::vector<StepBreakdown> steps = {};
  TimeBreakdown mean = {};  // of the steps
  OperationTotals operations = {};
  IdleTime idle = {};
  std::vector<StepExposure> exposures = {};
  StepTerms terms = {};
  std::vector<std::string> hints = {};

  double step_s() const { return mean.wall_s; }
};

// Of one rank only, if `rank` is given: UserError if the profile does not have it. Also UserError
// if there is no step in the profile, with the name of its `source`.
ProfileAnalysis analyze(Profile profile, const std::string& source,
                        std::optional<int> rank = std::nullopt);

// What to look at first, in sentences.
std::vector<std::string> profile_hints(const ProfileAnalysis& analysis);

}  // namespace kintsugi
