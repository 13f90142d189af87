#include "core/trace.h"

#include <chrono>
#include <utility>

#include "core/units.h"

namespace kintsugi {

std::string_view to_string(SpanKind kind) {
  return enum_name(kind, {"operation", "kernel", "memcpy", "memset", "communication", "runtime",
                          "phase", "data", "host"});
}

std::string_view to_string(WorkKind kind) {
  return enum_name(kind, {"unknown", "matmul", "attention", "memory"});
}

double Trace::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Trace::begin() {
  for (Source* source : sources_) source->trace_begins();
  on_ = true;
}

void Trace::end() {
  on_ = false;
  for (Source* source : sources_) source->trace_ends();
}

void Trace::add(TraceSpan span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<TraceSpan> Trace::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

HostSpan::HostSpan(Trace* trace, std::string_view name, SpanKind kind)
    : trace_(trace != nullptr && trace->on() ? trace : nullptr) {
  if (trace_ == nullptr) return;
  span_ = {.kind = kind, .lane = "host", .name = std::string(name)};
  span_.begin_s = Trace::now();
}

HostSpan::~HostSpan() {
  if (trace_ == nullptr) return;
  span_.end_s = Trace::now();
  trace_->add(std::move(span_));
}

}  // namespace kintsugi
