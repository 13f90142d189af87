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

// Device time by operation, for benchmarks and traces: an event on each side of every call. Does
// nothing, and costs nothing, until it is switched on; calls that a graph replays are not seen.
class OperationTimer final : private Trace::Source {
 public:
  // Of the operations on this stream; the trace, if any, switches it on and off.
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
  Span span(const F& name) {  // name() is called where it is needed
    return on() ? Span(this, begin(SpanKind::Compute, name())) : Span(nullptr, 0);
  }
  // What lies between: a span of the trace's lane "pipeline".
  void begin_phase(std::string_view name) { phase_ = begin(SpanKind::Pipeline, name); }
  void end_phase() noexcept { end(phase_); }
  // The sums since the last call, the longest first. Waits for the device.
  std::vector<OperationTime> take();
  // When the device came to an event since the trace began.
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
  std::optional<DeviceClock> clock_;  // since a trace began
};

}  // namespace kintsugi::cuda
