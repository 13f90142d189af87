#pragma once

#include <cstdint>

// Asynchronous copies of 16 bytes from global to shared memory (cp.async).

namespace kintsugi::cuda {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// `present` false: writes zeros and reads nothing.
__device__ inline void copy_async(void* to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}

// For data that is read once: it is the first to leave the L2 cache.
__device__ inline std::uint64_t read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void copy_async(void* to, const void* from, bool present, std::uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)),
      "l"(from), "r"(present ? 16 : 0), "l"(policy)
      : "memory");
}

// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kLeft groups of this thread are under way.
template <int kLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace kintsugi::cuda
