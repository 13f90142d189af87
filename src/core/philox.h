#pragma once

#include <array>
#include <cstdint>

namespace kintsugi {

// Philox4x32-10 (Salmon et al., SC'11): 128 random bits that are a pure function of a 128-bit
// counter and a 64-bit key. All random numbers of a run are drawn this way from the seed and global
// indices, so they do not depend on the layout.
struct Philox {
  using Block = std::array<std::uint32_t, 4>;

  static constexpr Block draw(std::uint64_t key, std::uint64_t counter_low,
                              std::uint64_t counter_high = 0) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key);
    std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
    Block c = {
        static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
        static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2];
      c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    return c;
  }

  // Uniform in [0, 1) with 24 bits: the same value in every floating-point format we use.
  static constexpr float uniform(std::uint32_t bits) {
    return static_cast<float>(bits >> 8) * 0x1.0p-24f;
  }
};

// A well-mixed 64-bit key from parts (splitmix64 finaliser), e.g. derive_key(seed, site, step).
constexpr std::uint64_t derive_key(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0) {
  std::uint64_t x = 0;
  for (const std::uint64_t part : {a, b, c}) {
    x += 0x9E3779B97F4A7C15ull + part;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
  }
  return x;
}

// Stochastic rounding from fp32 to bf16, so that small changes are not always rounded away. A value
// is rounded up with a probability equal to its distance from the lower bf16 value (in units of the
// spacing), so the expected result is the value itself. All backends draw the same bits.

// 32 random bits per element; one Philox block serves four elements.
constexpr std::uint32_t rounding_bits(std::uint64_t key, std::uint64_t element) {
  return Philox::draw(key, element / 4)[element % 4];
}

// Rounds the float with the bits `value` to bf16 bits, using 16 random bits. Infinities and NaNs
// are kept.
constexpr std::uint16_t round_stochastically(std::uint32_t value, std::uint32_t random16) {
  const bool finite = (value & 0x7F800000u) != 0x7F800000u;
  if (!finite) return static_cast<std::uint16_t>((value >> 16) | ((value & 0xFFFFu) ? 0x40u : 0u));
  return static_cast<std::uint16_t>((value + (random16 & 0xFFFFu)) >> 16);
}

}  // namespace kintsugi
