#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "backend/backend.h"

namespace kintsugi {

struct Fp8Scale {
  float scale = 1, inverse = 1;  // of quantize(): x is about scale * value, value is x * inverse
};

// The scale of a row, column or matrix whose largest magnitude has these bits. constexpr, so that
// kernels call it too.
constexpr Fp8Scale fp8_scale(std::uint32_t magnitude_bits, bool power_of_two) {
  constexpr std::uint32_t kInfinity = 0x7F800000u, kMantissa = 0x007FFFFFu;
  constexpr float kSmallest = std::numeric_limits<float>::min();  // 2^-126
  if (magnitude_bits == 0) return {};
  if (magnitude_bits >= kInfinity)
    return {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
  const float largest = std::bit_cast<float>(magnitude_bits);
  float scale = largest / 448.0f;
  if (scale < kSmallest) scale = kSmallest;
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  if (power_of_two && (bits & kMantissa) != 0)
    scale = std::bit_cast<float>((bits & ~kMantissa) + 0x00800000u);
  return {scale, 1.0f / scale};
}

}  // namespace kintsugi
