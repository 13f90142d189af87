#pragma once

#include <cstdint>

namespace kintsugi::gpu {

// scale / norm at a position. In double: tables are short, and their errors affect every output.
__device__ inline double row_factor(double scale, double decay, std::int64_t position) {
  // 1 - g^n would lose the digits of decays close to 1.
  return scale * sqrt((decay - 1) / expm1(static_cast<double>(position + 1) * log1p(decay - 1)));
}

}  // namespace kintsugi::gpu
