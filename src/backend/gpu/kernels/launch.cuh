#pragma once

#include <utility>

#include "backend/gpu/common.h"
#include "backend/gpu/kernels/platform.cuh"

// Launches of kernels.
//
// Programmatic dependent launch: a kernel may start while the one before it in the stream still
// runs, so that short kernels follow each other without a gap. A kernel launched with
// launch_overlapped() must call wait_for_previous() in every thread before it reads or writes
// memory; before that it may only prefetch. Its first call is allow_next(), which lets the next
// kernel start as early. GPUs before Hopper launch one kernel after the other.

namespace kintsugi::gpu {

// The stream of a launch and its place in the source, which an error names.
struct Place {
  Place(Stream stream, Where where = Where::current()) : stream(stream), where(where) {}
  Stream stream;
  Where where;
};

namespace detail {

template <class... Parameters>
void launch(const Place& place, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
            std::size_t shared_bytes, bool overlapped, Parameters... parameters) {
  const Grid grid = {.blocks = {blocks.x, blocks.y, blocks.z},
                     .threads = {threads.x, threads.y, threads.z},
                     .shared_bytes = shared_bytes};
#if defined(KINTSUGI_EMULATED_GPU)
  emulator::announce(kernel, place.where);  // how it is called
#endif
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(&parameters))..., nullptr};
  gpu::launch_kernel(reinterpret_cast<const void*>(kernel), grid, addresses, place.stream,
                     overlapped, place.where);
}

}  // namespace detail

template <class... Parameters, class... Arguments>
void launch_kernel(const Place& place, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                   std::size_t shared_bytes, Arguments&&... arguments) {
  detail::launch<Parameters...>(place, kernel, blocks, threads, shared_bytes, false,
                                Parameters(arguments)...);
}

template <class... Parameters, class... Arguments>
void launch_overlapped(const Context& context, void (*kernel)(Parameters...), dim3 blocks,
                       dim3 threads, std::size_t shared_bytes, Arguments&&... arguments) {
  detail::launch<Parameters...>(context.stream, kernel, blocks, threads, shared_bytes,
                                context.overlaps_launches, Parameters(arguments)...);
}

}  // namespace kintsugi::gpu
