#include "plan/pipeline_time.h"

#include <algorithm>
#include <numeric>

namespace kintsugi {
namespace {

double sum(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
double most(const std::vector<double>& x) { return *std::max_element(x.begin(), x.end()); }

}  // namespace

double pipeline_s(const PipelineShape& shape, const StageTimes& t) {
  const double m = shape.micro_batches, p = shape.stages;
  std::vector<double> both(t.forward.size());
  for (std::size_t i = 0; i < both.size(); ++i) both[i] = t.forward[i] + t.backward[i];
  const double slowest = most(both), others = sum(both) - slowest;
  if (shape.stages == 1) return m * slowest;
  const double messages = 2 * (p - 1) * t.message;
  switch (shape.kind) {
    case PipelineKind::GPipe:
      return sum(t.forward) + sum(t.backward) + (m - 1) * (most(t.forward) + most(t.backward)) +
             messages;
    case PipelineKind::OneForwardOneBackward:
      return m * slowest + others + messages;
    case PipelineKind::Interleaved:
      return m * slowest + others / shape.chunks + messages;
    case PipelineKind::ZeroBubbleH1: {
      // Where another schedule would wait, weights' halves are done.
      const double mean = others / (p - 1), weights = t.weight_share * sum(t.backward) / p;
      return m * slowest + (p - 1) * std::max(0.0, mean - 2 * weights) + messages;
    }
  }
  return 0;
}

}  // namespace kintsugi
