#include "backend/gpu/operation_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/log.h"
#include "core/trace.h"

namespace kintsugi::gpu {

// An event on an idle stream occurs between its record and the end of the wait for it. The clock's
// zero is the event with the shortest such interval of several attempts.
DeviceClock::DeviceClock(Stream stream) {
  constexpr int kAttempts = 20;
  synchronize(stream);
  zero_ = create_event();
  Event other = nullptr;
  other = create_event();
  double shortest_s = 1e30;
  for (int i = 0; i < kAttempts; ++i) {
    const double before_s = Trace::now();
    record(other, stream);
    synchronize(other);
    const double after_s = Trace::now();
    if (after_s - before_s >= shortest_s) continue;
    shortest_s = after_s - before_s;
    zero_s_ = (before_s + after_s) / 2;
    std::swap(zero_, other);
  }
  destroy(other);
}

DeviceClock::~DeviceClock() { destroy(zero_); }

double DeviceClock::seconds(Event event) const { return zero_s_ + elapsed_ms(zero_, event) * 1e-3; }

OperationTimer::OperationTimer(Stream stream, Trace* trace) : stream_(stream), trace_(trace) {
  if (trace_ != nullptr) trace_->attach(*this);
}

OperationTimer::~OperationTimer() {
  if (trace_ != nullptr) trace_->detach(*this);
  clear();
}

void OperationTimer::clear() {
  for (const Record& record : records_) {
    if (record.begin != nullptr) destroy(record.begin);
    if (record.end != nullptr) destroy(record.end);
  }
  records_.clear();
  phases_.clear();
}

std::size_t OperationTimer::begin(TraceSpan span) {
  Record record{.span = std::move(span)};
  TraceSpan& own = record.span;
  own.operation = own.kind == SpanKind::Phase ? 0 : static_cast<std::int64_t>(records_.size()) + 1;
  for (std::size_t i = 0; i < std::min<std::size_t>(phases_.size(), 2); ++i) {
    record.phases[i] = phases_[i] + 1;
    (i == 0 ? own.phase : own.layer) = records_[phases_[i]].span.name;
  }
  if (!records_activities_) {
    record.begin = create_event();
    record.end = create_event();
    gpu::record(record.begin, stream_);
  } else if (own.operation > 0) {
    recorder_->push(own.operation);
  }
  records_.push_back(std::move(record));
  return records_.size() - 1;
}

void OperationTimer::end(std::size_t record) noexcept {
  if (!records_activities_)
    record_if_possible(records_[record].end, stream_);
  else if (records_[record].span.operation > 0)
    recorder_->pop();
}

void OperationTimer::begin_phase(std::string name) {
  const bool outer = phases_.empty();
  phases_.push_back(begin(
      {.kind = SpanKind::Phase, .lane = outer ? "pipeline" : "layers", .name = std::move(name)}));
}

void OperationTimer::end_phase() noexcept {
  end(phases_.back());
  phases_.pop_back();
}

std::vector<OperationTime> OperationTimer::take() {
  synchronize(stream_);
  std::map<std::string, OperationTime> sums;
  for (const Record& record : records_) {
    OperationTime& sum = sums[record.span.name];
    sum.name = record.span.name;
    sum.calls += 1;
    sum.milliseconds += elapsed_ms(record.begin, record.end);
  }
  clear();
  std::vector<OperationTime> result;
  for (auto& [name, sum] : sums) result.push_back(std::move(sum));
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  return result;
}

double OperationTimer::seconds(Event event) const {
  KINTSUGI_CHECK(clock_, "event time requested before a trace began");
  return clock_->seconds(event);
}

void OperationTimer::trace_begins() {
  clear();
  clock_.emplace(stream_);
  try {
    if (!recorder_) recorder_ = make_activity_recorder();
    recorder_->begin();
    records_activities_ = true;
  } catch (const Failure& error) {
    log_warning(
        "the profile shows operations only, not kernels, copies and calls of the runtime: {}",
        error.what());
  }
}

void OperationTimer::trace_ends() {
  synchronize(stream_);
  if (records_activities_)
    add_spans_of_activities();
  else
    add_spans_of_events();
  clear();
}

void OperationTimer::add_spans_of_events() {
  for (Record& record : records_) {
    record.span.begin_s = seconds(record.begin);
    record.span.end_s = seconds(record.end);
    trace_->add(std::move(record.span));
  }
}

void OperationTimer::note_time(Record& record, const GpuActivity& activity) const {
  TraceSpan& span = record.span;
  const bool first = span.end_s == 0;
  span.begin_s = first ? activity.begin_s : std::min(span.begin_s, activity.begin_s);
  span.end_s = std::max(span.end_s, activity.end_s);
}

// An operation lasts from its first kernel or copy to its last one, and a phase from its first
// operation to its last one.
void OperationTimer::add_spans_of_activities() {
  std::int64_t lost = 0;
  records_activities_ = false;
  synchronize_device();
  std::vector<GpuActivity> activities = recorder_->end(lost);
  if (lost > 0) log_warning("{} records of the profile were lost: profile fewer steps", lost);
  std::set<std::uint32_t> streams;  // of operations
  for (const GpuActivity& activity : activities) {
    const auto number = static_cast<std::size_t>(activity.operation);
    if (number == 0 || number > records_.size() || activity.kind == SpanKind::Runtime) continue;
    if (activity.kind == SpanKind::Kernel) streams.insert(activity.lane);
    Record& record = records_[number - 1];
    note_time(record, activity);
    for (const std::size_t phase : record.phases)
      if (phase > 0) note_time(records_[phase - 1], activity);
  }
  for (Record& record : records_)
    if (record.span.end_s > 0) trace_->add(std::move(record.span));
  for (GpuActivity& activity : activities) {
    // Kernels on other streams are those of NCCL, which has spans of its own.
    if (activity.kind == SpanKind::Kernel && activity.operation == 0 &&
        !streams.contains(activity.lane))
      continue;
    const bool host = activity.kind == SpanKind::Runtime;
    trace_->add({.kind = activity.kind,
                 .lane = fmt::format("{} {}", host ? "runtime, thread" : "stream", activity.lane),
                 .name = std::move(activity.name),
                 .begin_s = activity.begin_s,
                 .end_s = activity.end_s,
                 .bytes = activity.bytes,
                 .operation = activity.operation,
                 .blocks = activity.blocks});
  }
}

}  // namespace kintsugi::gpu
