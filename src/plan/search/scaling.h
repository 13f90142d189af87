#pragma once

#include <string>
#include <vector>

#include "plan/costs/footprint.h"
#include "plan/search/interval.h"
#include "plan/search/search.h"

namespace kintsugi {

enum class ScalingKind { Strong, Weak };  // constant batch, or a batch proportional to the GPUs

struct ScalingRow {
  int gpus = 0;
  std::int64_t batch = 0;
  Evaluation evaluation = {};
  double efficiency = 0;                 // tokens/s/GPU relative to the first row
  std::int64_t accumulation = 1;         // micro-batches per step
  StepInterval interval = {};            // of the step time, and of all that depends on it
  std::optional<RunFootprint> run = {};  // of so many tokens
};
// The best layout for each number of GPUs. Numbers for which no layout fits are left out.
// `tokens`: of a run; 0: rows have none. `progress`: numbers of GPUs.
std::vector<ScalingRow> scaling(const PlanJob& job, const Machine& machine,
                                const SearchLimits& limits, ScalingKind kind,
                                const std::vector<int>& gpus, double tokens = 0,
                                const ProgressCall& progress = {});
// With a price the table has the cost of a billion tokens, and of the run.
std::string scaling_table(const std::vector<ScalingRow>& rows, double eur_per_gpu_hour = -1);
// Why efficiencies are above 100 %, if the first row's layout says it; or else "".
std::string efficiency_note(const std::vector<ScalingRow>& rows);
// A diagram of efficiency over GPUs.
std::string scaling_svg(const std::vector<ScalingRow>& rows, const std::string& title);

}  // namespace kintsugi
