#pragma once

#include <math.h>  // not <cmath>: kernels name exp, sqrt, … without std::

#include <algorithm>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator/async_copy.h"
#include "emulator/executor.h"
#include "emulator/lanes.h"
#include "emulator/matrix.h"
#include "emulator/shared_memory.h"

// The names that CUDA and HIP give to every kernel, for kernels that are compiled as plain C++ and
// executed by emulator::run().

// ---- qualifiers
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) alignas(n)

// ---- coordinates
#define threadIdx (::kintsugi::emulator::here().thread)
#define blockIdx (::kintsugi::emulator::here().block)
#define blockDim (::kintsugi::emulator::here().block_size)
#define gridDim (::kintsugi::emulator::here().grid_size)

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

// ---- vectors
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

// ---- threads
inline void __syncthreads(std::source_location where = std::source_location::current()) {
  kintsugi::emulator::sync_block(where);
}

template <class T>
concept AtomicInteger =
    std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;
template <class T>
concept AtomicNumber = AtomicInteger<T> || std::floating_point<T>;
// They return the old value.
template <AtomicNumber T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref(*address).fetch_add(value);
}
template <AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  std::atomic_ref target(*address);
  T old = target.load();
  while (old < value && !target.compare_exchange_weak(old, value)) {
  }
  return old;
}
template <AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  std::atomic_ref target(*address);
  T old = target.load();
  while (value < old && !target.compare_exchange_weak(old, value)) {
  }
  return old;
}

// ---- maths
template <class T>
concept Arithmetic = std::is_arithmetic_v<T>;

// Of two types, the result has the one of a + b. A NaN loses against a number.
template <Arithmetic A, Arithmetic B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  return y < x || x != x ? y : x;
}
template <Arithmetic A, Arithmetic B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  return x < y || x != x ? y : x;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }

// ---- bits
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
// The position of the lowest bit, counted from 1; 0: none is set.
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
// Byte i of the result is the byte of (y, x) that digit i of the selector names; with bit 3 of the
// digit, its sign in all bits.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = selector >> 4 * i & 0xfu;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (digit & 7u)) & 0xffu;
    if ((digit & 8u) != 0) byte = (byte & 0x80u) != 0 ? 0xffu : 0;
    result |= byte << 8 * i;
  }
  return result;
}
// The larger of each pair of 16-bit integers.
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a >> 16, b >> 16) << 16 | std::max(a & 0xffffu, b & 0xffffu);
}
