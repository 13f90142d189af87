#pragma once

#include <string>
#include <vector>

#include "plan/search/search.h"

namespace kintsugi {

enum class ScalingKind { Strong, Weak };  // constant batch, or a batch proportional to the GPUs

struct ScalingRow {
  int gpus = 0;
  std::int64_t batch = 0;
  Evaluation evaluation = {};
  double efficiency = 0;  // tokens/s/GPU relative to the first row
};
// The best layout for each number of GPUs. Numbers for which no layout fits are left out.
// `progress`: numbers of GPUs.
std::vector<ScalingRow> scaling(const PlanJob& job, const Machine& machine,
                                const SearchLimits& limits, ScalingKind kind,
                                const std::vector<int>& gpus, const ProgressCall& progress = {});
// With a price the table has the cost of a billion tokens.
std::string scaling_table(const std::vector<ScalingRow>& rows, double eur_per_gpu_hour = -1);
// A diagram of efficiency over GPUs.
std::string scaling_svg(const std::vector<ScalingRow>& rows, const std::string& title);

}  // namespace kintsugi
