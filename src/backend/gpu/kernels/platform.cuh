#pragma once

// What a kernel needs beyond the names that CUDA and HIP share (__global__, threadIdx,
// __syncthreads, …): 16-bit and 8-bit floats, exchange between lanes, shared memory, asynchronous
// copies, matrix instructions. Each platform's header defines the same functions; kernels name
// neither CUDA nor HIP.
//
// A team is 32 threads that exchange values: a warp of NVIDIA's GPUs, half a wave of AMD's.
namespace kintsugi::gpu {
inline constexpr int kTeam = 32;

// The matrix instructions of a platform, named by its kMatrixUnit: mma of NVIDIA's GPUs, by a warp;
// MFMA of AMD's, by a wave of 64 threads.
enum class MatrixUnit { Mma, Mfma };
}  // namespace kintsugi::gpu

#if defined(KINTSUGI_EMULATED_GPU)
#include KINTSUGI_EMULATED_GPU
#elif defined(__HIP__)
#include "backend/gpu/hip/platform.cuh"
#else
#include "backend/gpu/cuda/platform.cuh"
#endif
