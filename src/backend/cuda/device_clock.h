#pragma once

#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// When the device came to an event, by the host's monotonic clock.
class DeviceClock {
 public:
  // Waits for the stream. Good to a few microseconds.
  explicit DeviceClock(Stream stream);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  // Of an event that was recorded later, on any stream of the device, and is done.
  double seconds(cudaEvent_t event) const;

 private:
  cudaEvent_t zero_ = nullptr;
  double zero_s_ = 0;
};

}  // namespace kintsugi::cuda
