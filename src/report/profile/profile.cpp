#include "report/profile/profile.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace kintsugi {
namespace {

constexpr std::string_view kStepPrefix = "step ";

// -1 if the name is not that of a step.
std::int64_t step_number(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return -1;
  name.remove_prefix(kStepPrefix.size());
  std::int64_t number = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
  return parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() ? number : -1;
}

}  // namespace

TimeIntervals merged(TimeIntervals any) {
  std::erase_if(any, [](const TimeInterval& one) { return !(one.begin < one.end); });
  std::sort(any.begin(), any.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  TimeIntervals result;
  for (const TimeInterval& one : any) {
    if (result.empty() || result.back().end < one.begin)
      result.push_back(one);
    else
      result.back().end = std::max(result.back().end, one.end);
  }
  return result;
}

TimeIntervals common(const TimeIntervals& a, const TimeIntervals& b) {
  TimeIntervals result;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    const TimeInterval both{std::max(x->begin, y->begin), std::min(x->end, y->end)};
    if (both.begin < both.end) result.push_back(both);
    x->end < y->end ? ++x : ++y;
  }
  return result;
}

TimeIntervals without(const TimeIntervals& a, const TimeIntervals& b) {
  TimeIntervals rest;  // complement of b
  double end = -std::numeric_limits<double>::infinity();
  for (const TimeInterval& one : b) {
    rest.push_back({end, one.begin});
    end = one.end;
  }
  rest.push_back({end, std::numeric_limits<double>::infinity()});
  return common(a, rest);
}

double length_of(const TimeIntervals& a) {
  double sum = 0;
  for (const TimeInterval& one : a) sum += one.end - one.begin;
  return sum;
}

bool is_step(const TraceSpan& span) {
  return span.kind == SpanKind::Host && step_number(span.name) >= 0;
}

std::vector<StepWindow> steps_of(const RankTrace& rank) {
  std::vector<StepWindow> steps;
  for (const TraceSpan& span : rank.spans)
    if (is_step(span)) steps.push_back({step_number(span.name), {span.begin_s, span.end_s}});
  std::sort(steps.begin(), steps.end(),
            [](const auto& a, const auto& b) { return a.time.begin < b.time.begin; });
  return steps;
}

SpanKind compute_kind(const RankTrace& rank) {
  const bool kernels = std::any_of(rank.spans.begin(), rank.spans.end(), [](const TraceSpan& span) {
    return span.kind == SpanKind::Kernel;
  });
  return kernels ? SpanKind::Kernel : SpanKind::Operation;
}

}  // namespace kintsugi
