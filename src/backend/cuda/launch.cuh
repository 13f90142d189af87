#pragma once

#include <utility>

#include "backend/cuda/cuda_common.h"

// Programmatic dependent launch: a kernel may start while the one before it in the stream still
// runs, so that short kernels follow each other without a gap. A kernel launched with
// launch_overlapped() must call wait_for_previous() in every thread before it reads or writes
// memory; before that it may only prefetch. Its first call is allow_next(), which lets the next
// kernel start as early. GPUs before Hopper launch one kernel after the other.

namespace kintsugi::cuda {

__device__ inline void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Requests 128 bytes from memory into the L2 cache. It is safe before wait_for_previous(): later
// writes by the previous kernel update the cache.
__device__ inline void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

template <class... Parameters, class... Arguments>
void launch_overlapped(const Context& context, void (*kernel)(Parameters...), dim3 blocks,
                       dim3 threads, std::size_t shared_bytes, Arguments&&... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = &overlap;
  config.numAttrs = context.overlaps_launches ? 1 : 0;
  KINTSUGI_CUDA(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace kintsugi::cuda
