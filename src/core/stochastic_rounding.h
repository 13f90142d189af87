#pragma once

#include <cstdint>

#include "core/philox.h"

namespace kintsugi {

// Rounding by chance, for values whose small changes would otherwise be lost for good: a float goes
// up with a probability equal to the part that its bf16 form cannot hold, so that the mean of many
// roundings is the value itself. Every world draws the same bits.

// 32 random bits per element, four elements to a block.
constexpr std::uint32_t rounding_bits(std::uint64_t key, std::uint64_t element) {
  return Philox::draw(key, element / 4)[element % 4];
}

// The bf16 bits of a float given as bits, from 16 random ones. Infinities and NaNs stay what they
// are.
constexpr std::uint16_t round_by_chance(std::uint32_t value, std::uint32_t random16) {
  const bool finite = (value & 0x7F800000u) != 0x7F800000u;
  if (!finite) return static_cast<std::uint16_t>((value >> 16) | ((value & 0xFFFFu) ? 0x40u : 0u));
  return static_cast<std::uint16_t>((value + (random16 & 0xFFFFu)) >> 16);
}

}  // namespace kintsugi
