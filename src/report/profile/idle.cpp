#include "report/profile/idle.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace kintsugi {
namespace {

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

}  // namespace

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

}  // namespace kintsugi
