#include "tensor/elements.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kintsugi {
namespace {

template <class T>
double widened(T value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}

template <class T>
void widen(const std::byte* stored, std::span<double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, stored + i * sizeof(T), sizeof(T));
    values[i] = widened(value);
  }
}

// Rounds toward zero and sets the last bit if that was inexact. Rounding the result to 16 bits then
// equals rounding the double directly; rounding to nearest twice would not.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

template <class T>
T rounded(double value) {
  if constexpr (sizeof(T) == 2)
    return T(round_to_odd(value));
  else
    return static_cast<T>(value);
}

}  // namespace

bool is_float(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

void to_doubles(const std::byte* stored, DType dtype, std::span<double> values) {
  switch (dtype) {
    case DType::I64:
      return widen<std::int64_t>(stored, values);
    case DType::I32:
      return widen<std::int32_t>(stored, values);
    case DType::U8:
      return widen<std::uint8_t>(stored, values);
    default:
      visit_float(dtype, [&]<class T>() { widen<T>(stored, values); });
  }
}

RoundingReport from_doubles(std::span<const double> values, DType dtype, std::byte* stored) {
  RoundingReport report;
  visit_float(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T value = rounded<T>(values[i]);
      std::memcpy(stored + i * sizeof(T), &value, sizeof(T));
      if (std::isfinite(widened(value))) continue;
      ++(std::isfinite(values[i]) ? report.overflows : report.non_finite);
    }
  });
  return report;
}

void scale_into(std::span<double> sums, double factor, std::span<const double> values) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = factor * values[i];
}

void add_scaled(std::span<double> sums, double factor, std::span<const double> values) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += factor * values[i];
}

double dot_product(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace kintsugi
