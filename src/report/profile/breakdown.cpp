#include "report/profile/breakdown.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/units.h"
#include "report/profile/profile.h"

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

// What the host did, by priority and name: calls of the runtime, waits for data, other work.
using HostWork = std::map<std::pair<int, std::string>, TimeIntervals>;

HostWork host_work(const RankTrace& rank) {
  HostWork work;
  for (const TraceSpan& span : rank.spans) {
    const int priority = span.kind == SpanKind::Runtime                  ? 0
                         : span.kind == SpanKind::Data                   ? 1
                         : span.kind == SpanKind::Host && !is_step(span) ? 2
                                                                         : -1;
    if (priority >= 0) work[{priority, span.name}].push_back({span.begin_s, span.end_s});
  }
  for (auto& [name, intervals] : work) intervals = merged(std::move(intervals));
  return work;
}

// Calls use(name, seconds) for each part of `idle`; the name of the rest is empty.
template <class Use>
void split_by_host(TimeIntervals idle, const HostWork& work, const Use& use) {
  for (const auto& [name, intervals] : work) {
    use(name.second, length_of(common(idle, intervals)));
    idle = without(idle, intervals);
  }
  use(std::string(), length_of(idle));
}

bool ends_a_gap(const TraceSpan& span, SpanKind compute) {
  return is_device_work(span, compute) || span.kind == SpanKind::Communication;
}

bool longer(const IdleGap& a, const IdleGap& b) {
  return std::tuple(-a.seconds, a.rank, a.step, a.begin_s) <
         std::tuple(-b.seconds, b.rank, b.step, b.begin_s);
}

// A gap with its times in the trace.
struct FoundGap {
  IdleGap gap;
  TimeInterval time;
};

// Names what is around a gap.
IdleGap described(FoundGap found, const RankTrace& rank, const HostWork& work) {
  constexpr double kRounding_s = 1e-9;
  const SpanKind compute = compute_kind(rank);
  auto& [gap, time] = found;
  double last_end = -1, first_begin = -1;
  for (const TraceSpan& span : rank.spans) {
    if (!ends_a_gap(span, compute) || span.end_s <= span.begin_s) continue;
    if (span.end_s <= time.begin + kRounding_s && span.end_s > last_end) {
      last_end = span.end_s;
      gap.before = span.name;
    }
    if (span.begin_s >= time.end - kRounding_s && (first_begin < 0 || span.begin_s < first_begin)) {
      first_begin = span.begin_s;
      gap.after = span.name;
    }
  }
  if (last_end < time.begin - kRounding_s) gap.before.clear();  // the gap begins with the step
  if (first_begin > time.end + kRounding_s) gap.after.clear();
  double most = 0;
  split_by_host({time}, work, [&](const std::string& name, double seconds) {
    if (seconds <= most) return;
    most = seconds;
    gap.host = name;
  });
  return gap;
}

TimeIntervals busy_times(const RankTrace& rank) {
  const SpanKind compute = compute_kind(rank);
  TimeIntervals busy;
  for (const TraceSpan& span : rank.spans)
    if (ends_a_gap(span, compute)) busy.push_back({span.begin_s, span.end_s});
  return merged(std::move(busy));
}

template <class Gap, class Longer>
void keep_longest(std::vector<Gap>& gaps, const Longer& is_longer) {
  std::sort(gaps.begin(), gaps.end(), is_longer);
  if (gaps.size() > kLongestGaps) gaps.resize(kLongestGaps);
}

// The time at which the last rank entered each call.
using Readiness = std::map<std::string, double>;

Readiness readiness_of(const std::vector<RankTrace>& ranks) {
  Readiness ready;
  for (const RankTrace& rank : ranks)
    for (const TraceSpan& span : rank.spans) {
      if (span.call.empty()) continue;
      const auto [at, first] = ready.emplace(span.call, span.begin_s);
      at->second = std::max(at->second, span.begin_s);
    }
  return ready;
}

// The calls of one group, or of all groups.
struct Calls {
  TimeIntervals active, moving;  // moving: not waiting for a rank
  std::vector<const TraceSpan*> spans;
  void add(const TraceSpan& span, const Readiness& ready) {
    const auto found = ready.find(span.call);
    const double moves = found == ready.end() ? span.begin_s : found->second;
    active.push_back({span.begin_s, span.end_s});
    moving.push_back({std::max(span.begin_s, moves), span.end_s});
    spans.push_back(&span);
  }
};

Exposure exposure_in(const TimeInterval& window, const TimeIntervals& compute, const Calls& calls) {
  const TimeIntervals step{window};
  const TimeIntervals exposed = without(common(merged(calls.active), step), compute);
  Exposure result{.total_s = window.end - window.begin,
                  .compute_s = length_of(common(compute, step)),
                  .communication_s = length_of(common(merged(calls.active), step)),
                  .exposed_s = length_of(exposed),
                  .waiting_s = length_of(without(exposed, merged(calls.moving)))};
  for (const TraceSpan* span : calls.spans)
    if (span->end_s > window.begin && span->end_s <= window.end) result.bytes += span->bytes;
  return result;
}

void add_steps(const RankTrace& rank, const Readiness& ready, std::vector<StepExposure>& result) {
  const SpanKind computes = compute_kind(rank);
  TimeIntervals compute;
  Calls all;
  std::map<std::string, Calls> groups;
  for (const TraceSpan& span : rank.spans) {
    if (is_device_work(span, computes)) compute.push_back({span.begin_s, span.end_s});
    if (span.kind != SpanKind::Communication) continue;
    all.add(span, ready);
    groups[span.group()].add(span, ready);
  }
  compute = merged(std::move(compute));
  for (const StepWindow& window : steps_of(rank)) {
    StepExposure step{rank.rank, window.step, exposure_in(window.time, compute, all)};
    for (const auto& [name, calls] : groups)
      step.groups[name] = exposure_in(window.time, compute, calls);
    result.push_back(std::move(step));
  }
}

std::string percent(double value, double total) {
  return fmt::format("{:.1f} %", total > 0 ? 100 * value / total : 0.0);
}

std::string exposed_text(const Exposure& sum) {
  return fmt::format("{:.0f} % overlaps with compute; exposed {} (waiting for another rank {})",
                     100 * sum.hidden_share(), percent(sum.exposed_s, sum.total_s),
                     percent(sum.waiting_s, sum.total_s));
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

IdleTime idle_time(const Profile& profile) {
  IdleTime result;
  double steps = 0;
  std::map<std::string, double> hosts;
  for (const RankTrace& rank : profile.ranks) {
    const TimeIntervals busy = busy_times(rank);
    const HostWork work = host_work(rank);
    std::vector<FoundGap> longest;
    const std::vector<StepWindow> windows = steps_of(rank);
    for (const StepWindow& step : windows) {
      const TimeIntervals idle = without(merged({step.time}), busy);
      result.seconds += length_of(idle);
      result.gaps += static_cast<double>(idle.size());
      split_by_host(idle, work, [&](const std::string& name, double seconds) {
        if (seconds > 0) hosts[name] += seconds;
      });
      for (const TimeInterval& one : idle)
        longest.push_back({{.rank = rank.rank,
                            .step = step.step,
                            .begin_s = one.begin - step.time.begin,
                            .seconds = one.end - one.begin},
                           one});
      keep_longest(longest, [](const auto& a, const auto& b) { return longer(a.gap, b.gap); });
    }
    steps += static_cast<double>(windows.size());
    for (FoundGap& one : longest) result.longest.push_back(described(std::move(one), rank, work));
    keep_longest(result.longest, longer);
  }
  if (steps == 0) return result;
  result.seconds /= steps;
  result.gaps /= steps;
  for (const auto& [host, seconds] : hosts) result.hosts.push_back({host, seconds / steps});
  std::sort(result.hosts.begin(), result.hosts.end(), [](const auto& a, const auto& b) {
    return std::tuple(-a.seconds, a.host) < std::tuple(-b.seconds, b.host);
  });
  return result;
}

Exposure& Exposure::operator+=(const Exposure& other) {
  total_s += other.total_s;
  compute_s += other.compute_s;
  communication_s += other.communication_s;
  exposed_s += other.exposed_s;
  waiting_s += other.waiting_s;
  bytes += other.bytes;
  return *this;
}

std::vector<StepExposure> step_exposures(const std::vector<RankTrace>& ranks) {
  const Readiness ready = readiness_of(ranks);
  std::vector<StepExposure> result;
  for (const RankTrace& rank : ranks) add_steps(rank, ready, result);
  return result;
}

StepExposure sum_of(const std::vector<StepExposure>& steps) {
  StepExposure sum;
  for (const StepExposure& step : steps) {
    sum.all += step.all;
    for (const auto& [name, exposure] : step.groups) sum.groups[name] += exposure;
  }
  return sum;
}

std::vector<std::string> exposure_lines(const std::vector<StepExposure>& steps) {
  if (steps.empty()) return {};
  const auto& [rank, number, all, groups] = sum_of(steps);
  std::set<int> ranks;
  for (const StepExposure& step : steps) ranks.insert(step.rank);
  const std::int64_t first = steps.front().step, last = steps.back().step;
  std::string line =
      first == last ? fmt::format("step {}", first) : fmt::format("steps {}-{}", first, last);
  if (ranks.size() > 1) line += fmt::format(", mean of {} ranks", ranks.size());
  line += ": compute " + percent(all.compute_s, all.total_s);
  if (all.communication_s > 0)
    line += fmt::format(", communication {} of the time, of which {}",
                        percent(all.communication_s, all.total_s), exposed_text(all));
  line += "; idle " + percent(all.idle_s(), all.total_s);
  std::vector<std::string> lines{line};
  for (const auto& [name, sum] : groups) {
    if (sum.communication_s == 0) continue;
    lines.push_back(fmt::format(
        "  {}: {} of the time, of which {}; {} per step and rank", name,
        percent(sum.communication_s, sum.total_s), exposed_text(sum),
        format_bytes(static_cast<double>(sum.bytes) / static_cast<double>(steps.size()))));
  }
  return lines;
}

}  // namespace kintsugi
