#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/trace.h"

namespace kintsugi::gpu {

// Something that a GPU did, or a call of its runtime. Times are those of Trace::now().
struct GpuActivity {
  SpanKind kind = SpanKind::Kernel;  // Kernel, Memcpy, Memset or Runtime
  std::string name = {};
  double begin_s = 0, end_s = 0;
  std::int64_t bytes = 0;      // of a copy
  std::int64_t blocks = 0;     // of a kernel
  std::uint32_t lane = 0;      // stream; of a call of the runtime: thread
  std::int64_t operation = 0;  // what ActivityRecorder::push named; 0: nothing
};

// Records what this process lets GPUs do, with the vendor's profiler: CUPTI, which is loaded when
// it is first needed, or rocprofiler-sdk, which prepare_gpu_profile() loads. It belongs to the
// whole process: only one recorder records at a time.
class ActivityRecorder {
 public:
  virtual ~ActivityRecorder() = default;

  virtual void begin() = 0;  // Failure if the profiler refuses
  // In order of time. The device must be idle. `lost` becomes the number of records that the
  // profiler dropped.
  virtual std::vector<GpuActivity> end(std::int64_t& lost) = 0;
  // Everything that this thread requests from push to pop belongs to `operation`.
  virtual void push(std::int64_t operation) noexcept = 0;
  virtual void pop() noexcept = 0;
};

// Failure with the reason if the profiler is missing or was not known when this program was built.
std::unique_ptr<ActivityRecorder> make_activity_recorder();

// "kintsugi::gpu::(anonymous namespace)::fill<float>(…)" of a symbol; cut if it is very long.
std::string readable_kernel(const std::string& name);

}  // namespace kintsugi::gpu
