#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

// The CUDA side of kernels/platform.cuh.

// A variable in shared memory: KINTSUGI_SHARED(float[32], sums);
#define KINTSUGI_SHARED(type, name) __shared__ std::type_identity_t<type> name
// The most registers that a thread of a kernel may have.
#define KINTSUGI_REGISTERS(count) __maxnreg__(count)

namespace kintsugi::gpu {

// The shared memory that kernels plan with, of a block.
inline constexpr std::size_t kSharedBytes = std::size_t{227} << 10;
inline constexpr MatrixUnit kMatrixUnit = MatrixUnit::Mma;

// ---- types
using Bf16 = __nv_bfloat16;
using Half = __half;
using Fp8 = __nv_fp8_e4m3;

__device__ inline float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(Half x) { return __half2float(x); }
__device__ inline float to_float(Fp8 x) { return static_cast<float>(x); }
// Rounded to nearest even. On the host, too.
__host__ __device__ inline Bf16 to_bf16(float x) { return __float2bfloat16_rn(x); }
__host__ __device__ inline Half to_half(float x) { return __float2half_rn(x); }
__device__ inline Bf16 bf16_of_bits(std::uint16_t bits) { return __ushort_as_bfloat16(bits); }
// Two numbers in fp8 (E4M3), the first in the low byte; the largest number instead of larger ones.
__device__ inline unsigned fp8_pair(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}
// Two 16-bit numbers, the lower in the low half.
template <class T>
__device__ inline unsigned pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
}
// The larger of each pair of 16-bit integers.
__device__ inline unsigned max_pairs(unsigned a, unsigned b) { return __vmaxu2(a, b); }

// ---- maths with an error of a few units in the last place
__device__ inline float fast_exp(float x) { return __expf(x); }
// 2^x; subnormal results are 0.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_divide(float a, float b) { return __fdividef(a, b); }

// ---- memory
// For data that is not read again soon: does not displace other data from the cache.
__device__ inline void store_streaming(int4* address, int4 word) { __stcs(address, word); }
// Reads what other blocks have written, not an old copy of it.
__device__ inline unsigned load_fresh(const unsigned* address) { return __ldcg(address); }
// Requests 128 bytes from memory into the L2 cache. It is safe before wait_for_previous(): later
// writes by the previous kernel update the cache.
__device__ inline void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
// The block's dynamic shared memory, at a multiple of 16 bytes.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

// ---- teams: all 32 threads call these together
template <class T>
__device__ inline T shuffle(T x, int lane) {
  return __shfl_sync(~0u, x, lane);
}
template <class T>
__device__ inline T shuffle_xor(T x, int mask) {
  return __shfl_xor_sync(~0u, x, mask);
}
// Of the threads of a wave, which is a team here.
template <class T>
__device__ inline T shuffle_wave_xor(T x, int mask) {
  return shuffle_xor(x, mask);
}
template <class T>
__device__ inline T shuffle_up(T x, int by) {
  return __shfl_up_sync(~0u, x, static_cast<unsigned>(by));
}
__device__ inline unsigned ballot(bool x) { return __ballot_sync(~0u, x); }
__device__ inline unsigned match_any(int x) { return __match_any_sync(~0u, x); }
__device__ inline unsigned team_max(unsigned x) { return __reduce_max_sync(~0u, x); }
__device__ inline unsigned team_sum(unsigned x) { return __reduce_add_sync(~0u, x); }
__device__ inline void sync_team() { __syncwarp(); }

// ---- programmatic dependent launch (launch.cuh)
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

// ---- asynchronous copies of 16 bytes from global to shared memory
namespace detail {
__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
}  // namespace detail

// `present` false: writes zeros and reads nothing.
__device__ inline void copy_async(void* to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(detail::shared_address(to)),
               "l"(from), "r"(present ? 16 : 0)
               : "memory");
}
// For data that is read once: it is the first to leave the L2 cache.
__device__ inline std::uint64_t read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void copy_async(void* to, const void* from, bool present, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                   detail::shared_address(to)),
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

// ---- matrices, by a team
// d (16, 8) += a (16, 16) b (16, 8), in the fragments of mma.m16n8k16
template <class T>
__device__ inline void multiply_add(float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                    unsigned a3, unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
// Four matrices of 8 x 8 from shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(unsigned (&m)[4], const void* address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(detail::shared_address(address))
               : "memory");
}
__device__ inline void load_transposed(unsigned (&m)[4], const void* address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(detail::shared_address(address))
               : "memory");
}

}  // namespace kintsugi::gpu
