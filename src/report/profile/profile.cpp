#include "report/profile/profile.h"

#include <algorithm>
#include <charconv>

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

bool has_kernels(const RankTrace& rank) {
  return std::any_of(rank.spans.begin(), rank.spans.end(),
                     [](const TraceSpan& span) { return span.kind == SpanKind::Kernel; });
}

SpanKind compute_kind(const RankTrace& rank) {
  return has_kernels(rank) ? SpanKind::Kernel : SpanKind::Operation;
}

}  // namespace kintsugi
