#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/gpu/runtime.h"
#include "emulator/device.h"
#include "emulator/kernels.h"
#include "tensor/dtype.h"

// The emulated side of backend/gpu/kernels/platform.cuh.

#define KINTSUGI_SHARED(type, name) \
  auto& name = ::kintsugi::emulator::shared<std::type_identity_t<type>, decltype([] {})>()
#define KINTSUGI_REGISTERS(count)

namespace kintsugi::gpu {

// AMD's GPUs have 64 KiB.
inline constexpr std::size_t kSharedBytes = std::size_t{emulator::kWave == 64 ? 64 : 227} << 10;
inline constexpr MatrixUnit kMatrixUnit =
    emulator::kWave == 64 ? MatrixUnit::Mfma : MatrixUnit::Mma;

// ---- types: those of the CPU backend, which have the same bits
using Bf16 = bf16;
using Half = f16;
using Fp8 = f8;

inline float to_float(Bf16 x) { return static_cast<float>(x); }
inline float to_float(Half x) { return static_cast<float>(x); }
inline float to_float(Fp8 x) { return static_cast<float>(x); }
inline Bf16 to_bf16(float x) { return Bf16(x); }
inline Half to_half(float x) { return Half(x); }
inline Bf16 bf16_of_bits(std::uint16_t bits) { return std::bit_cast<Bf16>(bits); }
// A NaN has no sign, as the instruction of NVIDIA's GPUs writes it.
inline unsigned fp8_pair(float first, float second) {
  const auto bits = [](float x) { return x != x ? 0x7fu : Fp8(x).bits; };
  return bits(first) | bits(second) << 8;
}
template <class T>
unsigned pack_pair(float low, float high) {
  return T(low).bits | static_cast<unsigned>(T(high).bits) << 16;
}
inline unsigned max_pairs(unsigned a, unsigned b) { return __vmaxu2(a, b); }

inline float fast_exp(float x) { return std::exp(x); }
inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_divide(float a, float b) { return a / b; }

// ---- memory
inline void store_streaming(int4* address, int4 word) { *address = word; }
inline unsigned load_fresh(const unsigned* address) {
  return std::atomic_ref(*const_cast<unsigned*>(address)).load();
}
inline void prefetch_line(const void*) {}
inline unsigned char* dynamic_shared() {
  return static_cast<unsigned char*>(emulator::dynamic_shared());
}

// ---- teams
template <class T>
T shuffle(T x, int lane, Where where = Where::current()) {
  return emulator::shuffle(x, lane, emulator::kTeam, where);
}
template <class T>
T shuffle_xor(T x, int mask, Where where = Where::current()) {
  return emulator::shuffle_xor(x, mask, emulator::kTeam, where);
}
// Of the threads of a wave.
template <class T>
T shuffle_wave_xor(T x, int mask, Where where = Where::current()) {
  return emulator::shuffle_xor(x, mask, emulator::kWave, where);
}
template <class T>
T shuffle_up(T x, int by, Where where = Where::current()) {
  return emulator::shuffle_up(x, by, emulator::kTeam, where);
}
// The bits of the thread's own team.
inline unsigned ballot(bool x, Where where = Where::current()) {
  const std::uint64_t bits = emulator::ballot(x, emulator::kTeam, where);
  return static_cast<unsigned>(bits >> (emulator::here().number % emulator::kWave & 32u));
}
inline unsigned match_any(int x, Where where = Where::current()) {
  return static_cast<unsigned>(emulator::match_any(x, emulator::kTeam, where));
}
inline unsigned team_max(unsigned x, Where where = Where::current()) {
  for (int mask = emulator::kTeam / 2; mask > 0; mask /= 2)
    x = std::max(x, shuffle_xor(x, mask, where));
  return x;
}
inline unsigned team_sum(unsigned x, Where where = Where::current()) {
  for (int mask = emulator::kTeam / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask, where);
  return x;
}
inline void sync_team(Where where = Where::current()) {
  emulator::sync_wave(emulator::kTeam, where);
}

// ---- launches follow each other
inline void allow_next() {}
inline void wait_for_previous() {}

// ---- asynchronous copies, which arrive when they are waited for
inline void copy_async(void* to, const void* from, bool present) {
  emulator::copy_async(to, from, present);
}
inline std::uint64_t read_once() { return 0; }
inline void copy_async(void* to, const void* from, bool present, std::uint64_t) {
  emulator::copy_async(to, from, present);
}
inline void commit_copies() { emulator::commit_copies(); }
template <int kLeft>
void wait_for_copies() {
  emulator::wait_for_copies(kLeft);
}

// ---- matrices
template <class T>
void multiply_add(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                  unsigned b1, Where where = Where::current()) {
  emulator::mma_m16n8k16(d, {a0, a1, a2, a3}, {b0, b1}, std::is_same_v<T, Bf16>, where);
}
// d (16, 16) += a (16, 16) b (16, 16), in the fragments of MFMA 16x16x16
template <class T>
void multiply_add(float (&d)[4], const std::uint16_t (&a)[4], const std::uint16_t (&b)[4],
                  Where where = Where::current()) {
  if constexpr (std::is_same_v<T, Bf16>) {
    emulator::mfma_16x16x16_bf16(d, a, b, where);
  } else {
    emulator::mfma_16x16x16_f16(d, a, b, where);
  }
}
inline void load_matrices(unsigned (&m)[4], const void* address, Where where = Where::current()) {
  emulator::ldmatrix_x4(m, address, false, where);
}
inline void load_transposed(unsigned (&m)[4], const void* address, Where where = Where::current()) {
  emulator::ldmatrix_x4(m, address, true, where);
}

#if KINTSUGI_WAVE == 32
// ---- matrices in shared memory. Products are complete when they begin.
#define KINTSUGI_WARPGROUPS 1
struct SharedMatrix {
  SharedMatrix(const void* at, int next_bytes)
      : address(static_cast<const unsigned char*>(at)), next(next_bytes) {}
  void advance(int bytes) { address += bytes; }
  const unsigned char* address;
  int next;
};
template <class T, bool kTermsA, bool kTermsB, int kSums>
void begin_product(float (&d)[kSums], SharedMatrix a, SharedMatrix b, bool add) {
  constexpr DType kType = std::is_same_v<T, Fp8>    ? DType::F8
                          : std::is_same_v<T, Bf16> ? DType::BF16
                                                    : DType::F16;
  static_assert(kType != DType::F8 || !(kTermsA || kTermsB));
  emulator::wgmma(d, 2 * kSums, {a.address, a.next, kTermsA}, {b.address, b.next, kTermsB}, add,
                  kType);
}
inline void order_products() {}
inline void commit_products() {}
template <int kLeft>
void wait_for_products() {}
template <int kSums>
void wait_for_sums(float (&)[kSums]) {}
inline void publish_to_products() {}
inline void add_to_memory(float* address, const float (&x)[4]) {
  for (int i = 0; i < 4; ++i) address[i] += x[i];
}
#endif

}  // namespace kintsugi::gpu
