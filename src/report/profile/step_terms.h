#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "report/profile/breakdown.h"
#include "report/profile/exposure.h"
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

}  // namespace kintsugi
