#include "tensor/dtype.h"

#include <cmath>
#include <cstring>

#include "core/units.h"

namespace kintsugi {

std::string_view to_string(DType dtype) {
  return enum_name(dtype, {"fp64", "fp32", "bf16", "fp16", "int64", "int32", "uint8", "fp8"});
}

DType parse_precision(std::string_view text) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16})
    if (text == to_string(dtype)) return dtype;
  user_error("'{}' is not a precision: fp32, bf16, fp16 or fp64", text);
}

f16::f16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    bits = static_cast<std::uint16_t>(sign | 0x7E00u);
  } else if (magnitude >= 0x477FF000u) {  // rounds to 65536 or more
    bits = static_cast<std::uint16_t>(sign | 0x7C00u);
  } else if (magnitude < 0x38800000u) {  // subnormal: let the float adder round at bit 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3F000000u));
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    bits = static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
  }
}

f16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
  const std::uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

f8::f8(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((u >> 24) & 0x80u);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    bits = static_cast<std::uint8_t>(sign | 0x7Fu);
  } else if (magnitude >= 0x43E00000u) {  // 448
    bits = static_cast<std::uint8_t>(sign | 0x7Eu);
  } else if (magnitude < 0x3C800000u) {  // subnormal: let the float adder round at bit 2^-9
    const float rounded = std::bit_cast<float>(magnitude) + 0x1.0p14f;
    bits = static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x46800000u));
  } else {
    const std::uint32_t odd = (magnitude >> 20) & 1u;
    bits = static_cast<std::uint8_t>(sign | ((magnitude - 0x3C000000u + 0x7FFFFu + odd) >> 20));
  }
}

f8::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t exponent = (bits >> 3) & 0xFu, mantissa = bits & 7u;
  if ((bits & 0x7Fu) == 0x7Fu) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-9f;
  return sign != 0 ? -magnitude : magnitude;
}

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
