#include "backend/cuda/device_clock.h"

#include <utility>

#include "core/trace.h"

namespace kintsugi::cuda {

// An event on an idle stream occurs between its record and the end of the wait for it. The clock's
// zero is the event with the shortest such interval of several attempts.
DeviceClock::DeviceClock(Stream stream) {
  constexpr int kAttempts = 20;
  KINTSUGI_CUDA(cudaStreamSynchronize(stream));
  KINTSUGI_CUDA(cudaEventCreate(&zero_));
  cudaEvent_t other = nullptr;
  KINTSUGI_CUDA(cudaEventCreate(&other));
  double shortest_s = 1e30;
  for (int i = 0; i < kAttempts; ++i) {
    const double before_s = Trace::now();
    KINTSUGI_CUDA(cudaEventRecord(other, stream));
    KINTSUGI_CUDA(cudaEventSynchronize(other));
    const double after_s = Trace::now();
    if (after_s - before_s >= shortest_s) continue;
    shortest_s = after_s - before_s;
    zero_s_ = (before_s + after_s) / 2;
    std::swap(zero_, other);
  }
  cudaEventDestroy(other);
}

DeviceClock::~DeviceClock() { cudaEventDestroy(zero_); }

double DeviceClock::seconds(cudaEvent_t event) const {
  float elapsed_ms = 0;
  KINTSUGI_CUDA(cudaEventElapsedTime(&elapsed_ms, zero_, event));
  return zero_s_ + static_cast<double>(elapsed_ms) * 1e-3;
}

}  // namespace kintsugi::cuda
