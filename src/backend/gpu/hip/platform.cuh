#pragma once

#include <hip/hip_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// The HIP side of kernels/platform.cuh, for GPUs with waves of 64 lanes (CDNA): a team is half a
// wave. Compiled by clang with HIP's headers of ROCm 5.2 to 7, of which only names that all of them
// have are used.

#define KINTSUGI_SHARED(type, name) __shared__ std::type_identity_t<type> name
#define KINTSUGI_REGISTERS(count)  // the compiler counts by itself, for blocks of 1024 threads

namespace kintsugi::gpu {

inline constexpr std::size_t kSharedBytes = std::size_t{64} << 10;
inline constexpr MatrixUnit kMatrixUnit = MatrixUnit::Mfma;

// ---- types
struct Bf16 {
  std::uint16_t bits;
};
using Half = _Float16;
struct Fp8 {
  std::uint8_t bits;  // E4M3, as OCP defines it; CDNA3's own format is another
};

__host__ __device__ inline float to_float(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
__host__ __device__ inline float to_float(Half x) { return static_cast<float>(x); }
__host__ __device__ inline float to_float(Fp8 x) {
  const std::uint32_t magnitude = x.bits & 0x7fu, sign = static_cast<std::uint32_t>(x.bits & 0x80u)
                                                         << 24;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // The exponent of fp32 is 120 higher; a product with 2^120 is exact for subnormal numbers, too.
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}
__host__ __device__ inline Bf16 to_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
__host__ __device__ inline Half to_half(float x) { return static_cast<Half>(x); }
__device__ inline Bf16 bf16_of_bits(std::uint16_t bits) { return {bits}; }

namespace detail {
// Rounded to nearest even; 448 instead of larger numbers.
__device__ inline unsigned to_fp8(float x) {
  const unsigned bits = std::bit_cast<unsigned>(x), sign = bits >> 24 & 0x80u;
  if (x != x) return 0x7fu;
  const float size = std::bit_cast<float>(bits & 0x7fffffffu);
  if (size >= 448.0f) return sign | 0x7eu;
  if (size < 0x1p-6f)  // subnormal: a multiple of 2^-9; the sum with 2^14 has no smaller bits
    return sign | (std::bit_cast<unsigned>(size + 0x1p14f) & 0xfu);
  const unsigned rounded = std::bit_cast<unsigned>(size) + 0x7ffffu + (bits >> 20 & 1u);
  return sign | ((rounded >> 20) - (120u << 3));
}
}  // namespace detail
__device__ inline unsigned fp8_pair(float first, float second) {
  return detail::to_fp8(first) | detail::to_fp8(second) << 8;
}
template <class T>
__device__ inline unsigned pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, Half>)
    return std::bit_cast<std::uint16_t>(to_half(low)) |
           static_cast<unsigned>(std::bit_cast<std::uint16_t>(to_half(high))) << 16;
  else
    return to_bf16(low).bits | static_cast<unsigned>(to_bf16(high).bits) << 16;
}
__device__ inline unsigned max_pairs(unsigned a, unsigned b) {
  const unsigned low = max(a & 0xffffu, b & 0xffffu), high = max(a >> 16, b >> 16);
  return high << 16 | low;
}

// ---- maths
__device__ inline float fast_exp(float x) { return __expf(x); }
__device__ inline float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
__device__ inline float fast_divide(float a, float b) { return __fdividef(a, b); }

// ---- memory
__device__ inline void store_streaming(int4* address, int4 word) {
  using Words = int __attribute__((ext_vector_type(4)));
  const Words words = {word.x, word.y, word.z, word.w};
  __builtin_nontemporal_store(words, reinterpret_cast<Words*>(address));
}
__device__ inline unsigned load_fresh(const unsigned* address) {
  return __hip_atomic_load(address, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline void prefetch_line(const void*) {}
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __attribute__((aligned(16))) unsigned char kintsugi_dynamic_shared[];
  return kintsugi_dynamic_shared;
}

// ---- teams
template <class T>
__device__ inline T shuffle(T x, int lane) {
  return __shfl(x, lane, 32);
}
template <class T>
__device__ inline T shuffle_xor(T x, int mask) {
  return __shfl_xor(x, mask, 32);
}
template <class T>
__device__ inline T shuffle_wave_xor(T x, int mask) {
  return __shfl_xor(x, mask, 64);
}
template <class T>
__device__ inline T shuffle_up(T x, int by) {
  return __shfl_up(x, static_cast<unsigned>(by), 32);
}
__device__ inline unsigned ballot(bool x) {
  return static_cast<unsigned>(__ballot(x) >> (__lane_id() & 32u));
}
__device__ inline unsigned match_any(int x) {
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (shuffle(x, lane) == x) same |= 1u << lane;
  return same;
}
__device__ inline unsigned team_max(unsigned x) {
  for (int mask = 16; mask > 0; mask /= 2) x = max(x, shuffle_xor(x, mask));
  return x;
}
__device__ inline unsigned team_sum(unsigned x) {
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
// The lanes of a wave advance together, but the compiler may move accesses to memory.
__device__ inline void sync_team() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

// ---- one kernel runs after the other
__device__ inline void allow_next() {}
__device__ inline void wait_for_previous() {}

// ---- copies of 16 bytes through registers: done when copy_async returns
__device__ inline void copy_async(void* to, const void* from, bool present) {
  *static_cast<int4*>(to) = present ? *static_cast<const int4*>(from) : int4{0, 0, 0, 0};
}
__device__ inline std::uint64_t read_once() { return 0; }
__device__ inline void copy_async(void* to, const void* from, bool present, std::uint64_t) {
  copy_async(to, from, present);
}
__device__ inline void commit_copies() {}
template <int kLeft>
__device__ inline void wait_for_copies() {}

// ---- matrices
template <class T>
__device__ inline void multiply_add(float (&d)[4], const std::uint16_t (&a)[4],
                                    const std::uint16_t (&b)[4]) {
  using Sums = float __attribute__((ext_vector_type(4)));
  using Bits = short __attribute__((ext_vector_type(4)));
  using Halves = _Float16 __attribute__((ext_vector_type(4)));
  const Sums c = {d[0], d[1], d[2], d[3]};
  Sums sums;
  if constexpr (std::is_same_v<T, Half>)
    sums = __builtin_amdgcn_mfma_f32_16x16x16f16(std::bit_cast<Halves>(a), std::bit_cast<Halves>(b),
                                                 c, 0, 0, 0);
  else
    sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(std::bit_cast<Bits>(a), std::bit_cast<Bits>(b),
                                                     c, 0, 0, 0);
  for (int i = 0; i < 4; ++i) d[i] = sums[i];
}
// Of mma.m16n8k16, for kernels that are never made here.
template <class T>
__device__ void multiply_add(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                             unsigned b0, unsigned b1);
__device__ void load_matrices(unsigned (&m)[4], const void* address);
__device__ void load_transposed(unsigned (&m)[4], const void* address);

}  // namespace kintsugi::gpu
