#pragma once

#include "parallel/layout.h"
#include "plan/search/job.h"

namespace kintsugi {

// The busiest of the ranks that share the experts of a layer, relative to the mean. In every layer
// all of them wait for it.
struct BusiestRank {
  double rows = 1;    // choices that it computes
  double visits = 1;  // tokens that visit it from another rank
};
// The probability that a token chooses one of `own` experts, each `load` times as likely as the
// mean.
double visit_chance(const ExpertsConfig& experts, double own, double load = 1);
// Expected for PlanJob::imbalance; `tokens` of a micro-batch on each data rank.
BusiestRank busiest_rank(const PlanJob& job, const Layout& layout, std::int64_t tokens);

}  // namespace kintsugi
