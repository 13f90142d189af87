#include "report/profile/exposure.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "core/units.h"
#include "report/profile/profile.h"

namespace kintsugi {
namespace {

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

std::vector<std::string> exposure_lines(const std::vector<StepExposure>& steps) {
  if (steps.empty()) return {};
  Exposure all;
  std::map<std::string, Exposure> groups;
  std::set<int> ranks;
  for (const StepExposure& step : steps) {
    ranks.insert(step.rank);
    all += step.all;
    for (const auto& [name, exposure] : step.groups) groups[name] += exposure;
  }
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
