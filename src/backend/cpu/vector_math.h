#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace kintsugi {

// exp that compilers can vectorize: Cody-Waite reduction and a degree-6 polynomial, 2 ulp over the
// whole range. Arguments below -87 give 1e-38 instead of 0, which makes no difference in our sums.
inline float vector_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = (p * r) * r + r + 1.0f;
  return y * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}
inline double vector_exp(double x) { return std::exp(x); }

template <class A>
A sigmoid(A x) {
  return A(1) / (A(1) + vector_exp(-x));
}

}  // namespace kintsugi
