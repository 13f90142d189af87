#include "report/profile/step_terms.h"

#include <algorithm>

namespace kintsugi {
namespace {

double optimizer_part_s(const OperationTotal& operation) {
  double sum = 0;
  for (const auto& [phase, seconds] : operation.phases)
    if (phase == "optimizer" || phase == "sum gradients") sum += seconds;
  return sum;
}

// The mean time in which a rank only waits for another pipeline stage.
double bubble_s(const std::vector<StepExposure>& exposures) {
  double sum = 0;
  for (const StepExposure& step : exposures)
    if (const auto found = step.groups.find("pp"); found != step.groups.end())
      sum += std::min(found->second.waiting_s, step.all.exposed_s);
  return exposures.empty() ? 0 : sum / static_cast<double>(exposures.size());
}

}  // namespace

std::vector<std::pair<std::string_view, double>> named_terms(const StepTerms& terms) {
  return {{"matmul", terms.matmul_s},
          {"attention", terms.attention_s},
          {"memory-bound operations", terms.memory_s},
          {"optimizer", terms.optimizer_s},
          {"exposed communication", terms.communication_s},
          {"pipeline bubble", terms.bubble_s},
          {"other", terms.other_s()},
          {"step", terms.step_s}};
}

StepTerms measured_terms(const OperationTotals& operations, const TimeBreakdown& mean,
                         const std::vector<StepExposure>& exposures) {
  StepTerms terms{.bubble_s = bubble_s(exposures), .step_s = mean.wall_s};
  for (const OperationTotal& one : operations.operations) {
    const double optimizer_s = optimizer_part_s(one);
    terms.optimizer_s += optimizer_s;
    double& term = one.work == WorkKind::Matmul      ? terms.matmul_s
                   : one.work == WorkKind::Attention ? terms.attention_s
                                                     : terms.memory_s;
    term += one.seconds - optimizer_s;
  }
  terms.communication_s = mean[TimeCategory::Communication] - terms.bubble_s;
  return terms;
}

}  // namespace kintsugi
