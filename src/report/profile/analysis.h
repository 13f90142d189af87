#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/profile/breakdown.h"
#include "report/profile/exposure.h"
#include "report/profile/idle.h"
#include "report/profile/operations.h"

namespace kintsugi {

// The time of a step by the terms of the planner, in seconds: measured or predicted.
struct StepTerms {
  double matmul_s = 0;
  double attention_s = 0;
  double memory_s = 0;     // operations that are limited by memory, without those of the optimizer
  double optimizer_s = 0;  // with the sums of gradients before it
  double communication_s = 0;  // exposed, without the bubble
  double bubble_s = 0;         // waits for other pipeline stages
  double step_s = 0;

  double other_s() const {
    return step_s - matmul_s - attention_s - memory_s - optimizer_s - communication_s - bubble_s;
  }
};
// The terms with their names, in the order of a table; the step is the last.
std::vector<std::pair<std::string_view, double>> named_terms(const StepTerms& terms);

StepTerms measured_terms(const OperationTotals& operations, const TimeBreakdown& mean,
                         const std::vector<StepExposure>& exposures);

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
