#pragma once

#include <cstddef>
#include <string>

namespace kintsugi {

namespace gpu {
// Handles of the GPU's runtime, CUDA's or HIP's (backend/gpu/runtime.h).
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
}  // namespace gpu

// What a backend computes on.
struct Device {
  int index = 0;     // among the GPUs that this process sees
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-5f2c…", as nvidia-smi prints it
  std::string pci;   // "0000:1b:00.0"; empty: no GPU
  std::size_t memory_bytes = 0;
  gpu::Stream stream = nullptr;  // of the backend's operations; nullptr: no GPU
};

}  // namespace kintsugi
