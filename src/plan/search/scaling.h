#pragma once

#include <string>
#include <vector>

#include "plan/search/search.h"

namespace kintsugi {

enum class ScalingKind { Strong, Weak };  // the same batch, or a batch that grows with the GPUs

struct ScalingRow {
  int gpus = 0;
  std::int64_t batch = 0;
  Evaluation evaluation = {};
  double efficiency = 0;  // tokens/s/GPU against the first row's
};
// The best layout on each number of GPUs; those where nothing fits are left out.
std::vector<ScalingRow> scaling(const PlanJob& job, const Machine& machine,
                                const SearchLimits& limits, ScalingKind kind,
                                const std::vector<int>& gpus);
// With a price, what a billion tokens cost.
std::string scaling_table(const std::vector<ScalingRow>& rows, double eur_per_gpu_hour = -1);
// Efficiency over GPUs, as a picture.
std::string scaling_svg(const std::vector<ScalingRow>& rows, const std::string& title);

}  // namespace kintsugi
