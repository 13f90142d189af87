#include "core/trace.h"

#include <chrono>
#include <utility>

namespace kintsugi {

std::string_view to_string(SpanKind kind) {
  switch (kind) {
    case SpanKind::Operation:
      return "operation";
    case SpanKind::Kernel:
      return "kernel";
    case SpanKind::Memcpy:
      return "memcpy";
    case SpanKind::Memset:
      return "memset";
    case SpanKind::Communication:
      return "communication";
    case SpanKind::Runtime:
      return "runtime";
    case SpanKind::Phase:
      return "phase";
    case SpanKind::Data:
      return "data";
    case SpanKind::Host:
      return "host";
  }
  return "?";
}

std::string_view to_string(WorkKind kind) {
  switch (kind) {
    case WorkKind::Unknown:
      return "unknown";
    case WorkKind::Matmul:
      return "matmul";
    case WorkKind::Attention:
      return "attention";
    case WorkKind::Memory:
      return "memory";
  }
  return "?";
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
