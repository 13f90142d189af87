#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// Device time by operation, for benchmarks: an event on each side of every call. Does nothing, and
// costs nothing, until it is switched on; calls that a graph replays are not seen.
class OperationTimer {
 public:
  OperationTimer() = default;
  ~OperationTimer();
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

  class Span {
   public:
    Span(OperationTimer* timer, Stream stream) : timer_(timer), stream_(stream) {}
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    OperationTimer* timer_;  // nullptr: switched off
    Stream stream_;
  };

  void switch_on() { on_ = true; }
  bool on() const { return on_; }
  Span span(std::string_view name, Stream stream);
  // The sums since the last call, the longest first. Waits for the device.
  std::vector<OperationTime> take(Stream stream);

 private:
  struct Record {
    std::string name;
    cudaEvent_t begin, end;
  };
  bool on_ = false;
  std::vector<Record> records_;
};

}  // namespace kintsugi::cuda
