#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"

namespace kintsugi {

enum class DType : std::uint8_t { F64, F32, BF16, F16, I64, I32, U8, F8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
    case DType::F16:
      return 2;
    case DType::U8:
    case DType::F8:
      return 1;
  }
  return 0;
}

std::string_view to_string(DType dtype);       // "fp32", "bf16", … as users write them
DType parse_precision(std::string_view text);  // fp64, fp32, bf16, fp16; UserError otherwise

// 16-bit floats are storage types: arithmetic is done in float.
struct bf16 {
  std::uint16_t bits;
  bf16() = default;
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    // Round to nearest even; a NaN keeps its sign and a set mantissa bit.
    bits = (u & 0x7FFFFFFFu) > 0x7F800000u
               ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
               : static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

struct f16 {
  std::uint16_t bits;
  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

// E4M3: 4 bits of exponent, 3 of mantissa, no infinity. Larger numbers become the largest one.
struct f8 {
  static constexpr float kLargest = 448.0f;
  std::uint8_t bits;
  f8() = default;
  explicit f8(float value);  // rounds to nearest even
  explicit operator float() const;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::F64> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::F32> {};
template <>
struct DTypeOf<bf16> : std::integral_constant<DType, DType::BF16> {};
template <>
struct DTypeOf<f16> : std::integral_constant<DType, DType::F16> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::I64> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::I32> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::U8> {};
template <>
struct DTypeOf<f8> : std::integral_constant<DType, DType::F8> {};

// The type for arithmetic on a stored type: double for double, float for all smaller types.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;
constexpr DType accumulator_of(DType dtype) {
  return dtype == DType::F64 ? DType::F64 : DType::F32;
}

// Calls f.template operator()<T>() with the storage type of a floating-point dtype.
template <class F>
decltype(auto) visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F64:
      return f.template operator()<double>();
    case DType::F32:
      return f.template operator()<float>();
    case DType::BF16:
      return f.template operator()<bf16>();
    case DType::F16:
      return f.template operator()<f16>();
    default:
      failure("{} is not a floating-point type", to_string(dtype));
  }
}

// Arithmetic in double on stored elements, for tools that read and write files. Stored elements may
// be unaligned.

bool is_float(DType dtype);  // F64, F32, BF16, F16

void to_doubles(const std::byte* stored, DType dtype, std::span<double> values);

struct RoundingReport {
  std::size_t overflows = 0;   // finite values that became infinite
  std::size_t non_finite = 0;  // values that were infinite or NaN before
};
// Rounds every value once, to nearest even, to a floating-point type.
RoundingReport from_doubles(std::span<const double> values, DType dtype, std::byte* stored);

// sums = factor · values, or sums += factor · values.
void scale_into(std::span<double> sums, double factor, std::span<const double> values);
void add_scaled(std::span<double> sums, double factor, std::span<const double> values);
double dot_product(std::span<const double> a, std::span<const double> b);

}  // namespace kintsugi
