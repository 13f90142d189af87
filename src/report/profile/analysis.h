#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/profile/breakdown.h"
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

enum class ChangeKind : std::uint8_t { Slower, Faster, Added, Removed, Unchanged };
std::string_view to_string(ChangeKind kind);

// One operation in two profiles. Figures are per step and rank.
struct OperationChange {
  std::string name = {};
  ChangeKind kind = ChangeKind::Unchanged;
  double calls_before = 0, calls_after = 0;
  double before_s = 0, after_s = 0;

  double delta_s() const { return after_s - before_s; }
};

struct ProfileDiff {
  double before_s = 0, after_s = 0;                                        // a step
  std::array<std::pair<double, double>, kTimeCategories> categories = {};  // before, after
  std::vector<OperationChange> operations = {};                            // largest change first

  std::string headline() const;  // what got slower the most
};

// A change is smaller than 2 % of the operation and 0.05 % of the step: unchanged.
ProfileDiff compare_profiles(const ProfileAnalysis& before, const ProfileAnalysis& after);

}  // namespace kintsugi
