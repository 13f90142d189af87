#pragma once

#include <cuda_runtime_api.h>

#include "backend/gpu/runtime.h"

// CUDA's own handles, for its libraries.
namespace kintsugi::gpu {

inline cudaStream_t native(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t native(Event event) { return reinterpret_cast<cudaEvent_t>(event); }

}  // namespace kintsugi::gpu
