#pragma once

#include <cstdint>

#include "core/philox.h"

namespace kintsugi {

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
