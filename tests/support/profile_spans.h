#pragma once

#include <string>
#include <utility>

#include "report/profile/profile.h"

namespace kintsugi::spans {

// Spans of hand-made profiles. Times are seconds.

inline TraceSpan step(std::int64_t number, double begin, double end) {
  return {.kind = SpanKind::Host,
          .lane = "host",
          .name = "step " + std::to_string(number),
          .begin_s = begin,
          .end_s = end};
}
inline TraceSpan of(SpanKind kind, std::string name, double begin, double end) {
  return {.kind = kind,
          .lane = std::string(to_string(kind)),
          .name = std::move(name),
          .begin_s = begin,
          .end_s = end};
}
inline TraceSpan communication(std::string group, double begin, double end, std::string call = "") {
  TraceSpan span = of(SpanKind::Communication, "all_gather", begin, end);
  span.lane = std::move(group);
  span.call = std::move(call);
  return span;
}
// A numbered operation of a phase and a layer.
inline TraceSpan operation(std::int64_t number, std::string name, double begin, double end,
                           std::string phase = "", std::string layer = "") {
  TraceSpan span = of(SpanKind::Operation, std::move(name), begin, end);
  span.operation = number;
  span.phase = std::move(phase);
  span.layer = std::move(layer);
  return span;
}
// What the device did for an operation.
inline TraceSpan caused(SpanKind kind, std::int64_t by, std::string name, double begin,
                        double end) {
  TraceSpan span = of(kind, std::move(name), begin, end);
  span.operation = by;
  return span;
}

inline Profile one_rank(std::vector<TraceSpan> spans, ProfileFacts facts = {}) {
  return {.facts = std::move(facts), .ranks = {{.rank = 0, .spans = std::move(spans)}}};
}

}  // namespace kintsugi::spans
