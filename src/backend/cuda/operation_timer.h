#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_common.h"
#include "backend/cuda/device_clock.h"
#include "core/trace.h"

namespace kintsugi::cuda {

// Measures device time by operation, for benchmarks and traces, with an event before and after
// every call. Costs nothing until it is switched on. Does not see calls that a graph replays.
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
  template <class F>
  Span span(const F& name) {  // name() is called only while the timer is on
    return on() ? Span(this, begin(SpanKind::Operation, name())) : Span(nullptr, 0);
  }
  // A span in the trace's lane "pipeline", from begin_phase to end_phase.
  void begin_phase(std::string_view name) { phase_ = begin(SpanKind::Phase, name); }
  void end_phase() noexcept { end(phase_); }
  // The times since the last call, summed by name, longest first. Waits for the device.
  std::vector<OperationTime> take();
  // The time of an event that was recorded after the trace began.
  double seconds(cudaEvent_t event) const;

 private:
  struct Record {
    SpanKind kind;
    std::string name;
    cudaEvent_t begin, end;
  };
  std::size_t begin(SpanKind kind, std::string_view name);
  void end(std::size_t record) noexcept;
  void trace_begins() override;
  void trace_ends() override;
  void clear();

  const Stream stream_;
  Trace* const trace_;
  bool on_ = false;
  std::vector<Record> records_;
  std::size_t phase_ = 0;
  std::optional<DeviceClock> clock_;  // set when a trace begins
};

}  // namespace kintsugi::cuda
