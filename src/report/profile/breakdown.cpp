#include "report/profile/breakdown.h"

#include <algorithm>

namespace kintsugi {
namespace {

using CategoryIntervals = std::array<TimeIntervals, kTimeCategories>;

std::size_t index_of(TimeCategory category) { return static_cast<std::size_t>(category); }

// Other: the span has no category.
TimeCategory category_of(const TraceSpan& span, SpanKind compute) {
  if (span.kind == compute) return TimeCategory::Kernel;
  switch (span.kind) {
    case SpanKind::Memcpy:
      return TimeCategory::Memcpy;
    case SpanKind::Memset:
      return TimeCategory::Memset;
    case SpanKind::Communication:
      return TimeCategory::Communication;
    case SpanKind::Runtime:
      return TimeCategory::Runtime;
    case SpanKind::Data:
      return TimeCategory::DataLoader;
    case SpanKind::Host:
      return is_step(span) ? TimeCategory::Other : TimeCategory::CpuExec;
    case SpanKind::Operation:
    case SpanKind::Kernel:
    case SpanKind::Phase:
      break;
  }
  return TimeCategory::Other;
}

CategoryIntervals intervals_by_category(const RankTrace& rank) {
  const SpanKind compute = compute_kind(rank);
  CategoryIntervals result;
  for (const TraceSpan& span : rank.spans)
    result[index_of(category_of(span, compute))].push_back({span.begin_s, span.end_s});
  result[index_of(TimeCategory::Other)].clear();
  for (TimeIntervals& one : result) one = merged(std::move(one));
  return result;
}

double multiprocessors_s(const RankTrace& rank, const TimeInterval& window,
                         std::int64_t multiprocessors) {
  if (multiprocessors <= 0) return 0;
  double sum = 0;
  for (const TraceSpan& span : rank.spans) {
    if (span.kind != SpanKind::Kernel) continue;
    const double inside = std::min(span.end_s, window.end) - std::max(span.begin_s, window.begin);
    const double share = static_cast<double>(span.blocks) / static_cast<double>(multiprocessors);
    if (inside > 0) sum += inside * std::min(share, 1.0);
  }
  return sum;
}

// Each category gets what the ones before it have left of the step.
TimeBreakdown breakdown_of(const TimeInterval& window, const CategoryIntervals& intervals) {
  TimeBreakdown result{.wall_s = window.end - window.begin};
  TimeIntervals left = merged({window});
  for (const TimeCategory category : kAllCategories) {
    const TimeIntervals& own = intervals[index_of(category)];
    if (category == TimeCategory::Other) {
      result.seconds[index_of(category)] = length_of(left);
      break;
    }
    result.seconds[index_of(category)] = length_of(common(left, own));
    left = without(left, own);
  }
  result.overlap_s = length_of(common(common(intervals[index_of(TimeCategory::Kernel)],
                                             intervals[index_of(TimeCategory::Communication)]),
                                      merged({window})));
  return result;
}

}  // namespace

std::string_view to_string(TimeCategory category) {
  constexpr std::array<std::string_view, kTimeCategories> kNames = {
      "Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CPU Exec", "Other"};
  return kNames[index_of(category)];
}

double TimeBreakdown::idle_s() const {
  return (*this)[TimeCategory::Runtime] + (*this)[TimeCategory::DataLoader] +
         (*this)[TimeCategory::CpuExec] + (*this)[TimeCategory::Other];
}

TimeBreakdown& TimeBreakdown::operator+=(const TimeBreakdown& other) {
  wall_s += other.wall_s;
  for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] += other.seconds[i];
  overlap_s += other.overlap_s;
  multiprocessors_s += other.multiprocessors_s;
  return *this;
}

TimeBreakdown operator*(double factor, TimeBreakdown breakdown) {
  breakdown.wall_s *= factor;
  for (double& one : breakdown.seconds) one *= factor;
  breakdown.overlap_s *= factor;
  breakdown.multiprocessors_s *= factor;
  return breakdown;
}

std::vector<StepBreakdown> step_breakdowns(const Profile& profile) {
  std::vector<StepBreakdown> result;
  for (const RankTrace& rank : profile.ranks) {
    const CategoryIntervals intervals = intervals_by_category(rank);
    for (const StepWindow& step : steps_of(rank)) {
      StepBreakdown one{breakdown_of(step.time, intervals), rank.rank, step.step};
      one.multiprocessors_s = multiprocessors_s(rank, step.time, profile.facts.multiprocessors);
      result.push_back(one);
    }
  }
  return result;
}

TimeBreakdown mean_breakdown(const std::vector<StepBreakdown>& steps) {
  TimeBreakdown sum;
  for (const StepBreakdown& step : steps) sum += step;
  return steps.empty() ? sum : 1.0 / static_cast<double>(steps.size()) * sum;
}

}  // namespace kintsugi
