#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/gpu/activity.h"
#include "backend/gpu/common.h"
#include "backend/gpu/gpu_backend.h"
#include "core/trace.h"

namespace kintsugi::gpu {

// Converts events to times of the host's monotonic clock.
class DeviceClock {
 public:
  // Waits for the stream. Accurate to a few microseconds.
  explicit DeviceClock(Stream stream);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  // The time of an event that was recorded after construction, on any stream of the device, and is
  // complete.
  double seconds(Event event) const;

 private:
  Event zero_ = nullptr;
  double zero_s_ = 0;
};

// Measures device time by operation, for benchmarks and traces. A trace uses an ActivityRecorder,
// which sees every kernel and copy. Benchmarks, and traces without a recorder, use an event before
// and after every operation. Costs nothing until it is switched on. Does not see calls that a graph
// replays.
class OperationTimer final : private Trace::Source {
 public:
  // Times the operations on `stream`. The trace, if any, switches it on and off.
  OperationTimer(Stream stream, Trace* trace);
  ~OperationTimer() override;
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

  class Span {
   public:
    Span(OperationTimer* timer, std::size_t record) : timer_(timer), record_(record) {}
    ~Span() {
      if (timer_ != nullptr) timer_->end(record_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    OperationTimer* timer_;  // nullptr: switched off
    std::size_t record_;
  };

  void switch_on() { on_ = true; }
  bool traces() const { return trace_ != nullptr && trace_->on(); }
  bool on() const { return on_ || traces(); }
  // describe() returns a TraceSpan without times; it is called only while the timer is on.
  template <class F>
  Span span(const F& describe) {
    return on() ? Span(this, begin(describe())) : Span(nullptr, 0);
  }
  // Spans of phases: an outer one in the lane "pipeline", one inside it in the lane "layers".
  void begin_phase(std::string name);
  void end_phase() noexcept;
  // The times since the last call, summed by name, longest first. Waits for the device.
  std::vector<OperationTime> take();
  // The time of an event that was recorded after the trace began.
  double seconds(Event event) const;

 private:
  struct Record {
    TraceSpan span;
    Event begin = nullptr, end = nullptr;  // not with a recorder
    std::size_t phases[2] = {};            // records of the phases around it, plus 1; 0: none
  };
  std::size_t begin(TraceSpan span);
  void end(std::size_t record) noexcept;
  void trace_begins() override;
  void trace_ends() override;
  void add_spans_of_events();
  void add_spans_of_activities();
  void note_time(Record& record, const GpuActivity& activity) const;
  void clear();

  const Stream stream_;
  Trace* const trace_;
  bool on_ = false;
  std::vector<Record> records_;
  std::vector<std::size_t> phases_;             // records of the open phases
  std::optional<DeviceClock> clock_;            // set when a trace begins
  std::unique_ptr<ActivityRecorder> recorder_;  // nullptr: events
  bool records_activities_ = false;             // now
};

}  // namespace kintsugi::gpu
