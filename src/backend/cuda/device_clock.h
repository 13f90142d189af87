#pragma once

#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// Converts CUDA events to times of the host's monotonic clock.
class DeviceClock {
 public:
  // Waits for the stream. Accurate to a few microseconds.
  explicit DeviceClock(Stream stream);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  // The time of an event that was recorded after construction, on any stream of the device, and is
  // complete.
  double seconds(cudaEvent_t event) const;

 private:
  cudaEvent_t zero_ = nullptr;
  double zero_s_ = 0;
};

}  // namespace kintsugi::cuda
