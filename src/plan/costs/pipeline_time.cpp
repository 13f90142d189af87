#include "plan/costs/pipeline_time.h"

#include <algorithm>
#include <numeric>

namespace kintsugi {
namespace {

double sum(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
double most(const std::vector<double>& x) { return *std::max_element(x.begin(), x.end()); }

double busy_s(const StageTimes& t, std::size_t i) {
  return t.forward[i] + t.backward[i] + (t.stops.empty() ? 0.0 : t.stops[i]);
}

}  // namespace

std::size_t slowest_stage(const StageTimes& t) {
  std::size_t at = 0;
  for (std::size_t i = 1; i < t.forward.size(); ++i)
    if (busy_s(t, i) > busy_s(t, at)) at = i;
  return at;
}

double pipeline_s(const PipelineShape& shape, const StageTimes& t) {
  const double m = shape.micro_batches, p = shape.stages;
  std::vector<double> both(t.forward.size());
  for (std::size_t i = 0; i < both.size(); ++i) both[i] = t.forward[i] + t.backward[i];
  // The slowest stage waits at its stops for every micro-batch; while the pipeline fills and drains
  // each message counts once.
  const std::size_t at = slowest_stage(t);
  const double slowest = busy_s(t, at), others = sum(both) - both[at];
  if (shape.stages == 1) return m * slowest;
  const double messages = 2 * (p - 1) * (t.message + t.first_message);
  switch (shape.kind) {
    case PipelineKind::GPipe:
      return sum(t.forward) + sum(t.backward) + (m - 1) * (most(t.forward) + most(t.backward)) +
             m * (slowest - both[at]) + messages;
    case PipelineKind::OneForwardOneBackward:
      return m * slowest + others + messages;
    case PipelineKind::Interleaved:
      return m * slowest + others / shape.chunks + messages;
    case PipelineKind::ZeroBubbleH1: {
      // Weight gradients fill the bubble.
      const double mean = others / (p - 1), weights = t.weight_share * sum(t.backward) / p;
      return m * slowest + (p - 1) * std::max(0.0, mean - 2 * weights) + messages;
    }
  }
  return 0;
}

double executed_pipeline_s(const PipelineShape& shape, const StageTimes& t) {
  // Other programs interleave any number of micro-batches, or have stages that stop together for a
  // message, which the schedule does not describe.
  const int rest = shape.micro_batches % shape.stages;
  if (shape.stages == 1 || (shape.chunks > 1 && rest != 0) || sum(t.stops) > 0)
    return pipeline_s(shape, t);
  const ActionSeconds seconds = [&](int rank, const Action& action) {
    const ChunkTimes& chunk = t.chunks[rank][action.chunk];
    switch (action.kind) {
      case ActionKind::Forward:
        return chunk.forward;
      case ActionKind::BackwardInput:
        return chunk.backward * (1 - t.weight_share);
      case ActionKind::BackwardWeight:
        return chunk.backward * t.weight_share;
      default:
        return chunk.backward;
    }
  };
  const auto executed = [&](int micro_batches) {
    return schedule_s({shape.kind, shape.stages, micro_batches, shape.chunks}, seconds, t.message);
  };
  const double filling = 2 * (shape.stages - 1) * t.first_message;
  // After the first rounds of `stages` micro-batches, each takes as long as the next.
  constexpr int kFirst = 4, kMore = 2;
  const int first = kFirst * shape.stages + rest, second = first + kMore * shape.stages;
  if (shape.micro_batches <= second) return filling + executed(shape.micro_batches);
  const double longer = executed(second),
               one = std::max((longer - executed(first)) / (second - first),
                              busy_s(t, slowest_stage(t)));
  return filling + longer + (shape.micro_batches - second) * one;
}

}  // namespace kintsugi
