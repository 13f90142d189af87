#include "plan/costs/routing.h"

#include <algorithm>
#include <cmath>

namespace kintsugi {
namespace {

// The expected maximum of n normal variables, in standard deviations.
double expected_maximum(double n) { return std::sqrt(2 * std::log(n)); }

}  // namespace

double visit_chance(const ExpertsConfig& experts, double own, double load) {
  // A token chooses among its best groups. What holds more than one of them is visited as if there
  // were none.
  const bool within =
      own * static_cast<double>(experts.groups) <= static_cast<double>(experts.count);
  const double part =
      within ? static_cast<double>(experts.top_groups) / static_cast<double>(experts.groups) : 1;
  const double open = part * static_cast<double>(experts.count);
  double none = 1;
  for (std::int64_t i = 0; i < experts.chosen; ++i)
    none *= std::max(0.0, 1 - load * own / (open - static_cast<double>(i)));
  return part * (1 - none);
}

// Loads of experts differ by what the router prefers and, in a micro-batch, by chance. Both average
// out over the experts of a rank.
BusiestRank busiest_rank(const PlanJob& job, const Layout& layout, std::int64_t tokens) {
  const double ranks = layout.tp * layout.expert_ranks();
  if (!job.model.experts || ranks == 1 || job.imbalance == 1) return {};
  const ExpertsConfig& experts = *job.model.experts;
  const double count = static_cast<double>(experts.count),
               chosen = static_cast<double>(experts.chosen), own = count / ranks;
  const double rows = static_cast<double>(tokens) * layout.expert_ranks() * chosen / count;
  const double preference = (job.imbalance - 1) / expected_maximum(count);
  const double of_expert = preference * preference + 1 / rows;  // variances
  const double limit = std::min(ranks, count / chosen);  // every token chooses as many as it can
  BusiestRank busiest{1 + expected_maximum(ranks) * std::sqrt(of_expert / own)};
  if (job.model.balance.capacity > 0)
    busiest.rows = std::min(busiest.rows, std::max(1.0, job.model.balance.capacity));
  busiest.rows = std::min(busiest.rows, limit);
  busiest.visits = visit_chance(experts, own, busiest.rows) / visit_chance(experts, own);
  return busiest;
}

}  // namespace kintsugi
