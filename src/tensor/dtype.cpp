#include "tensor/dtype.h"

#include <array>

#include "core/units.h"

namespace kintsugi {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return "fp64";
    case DType::F32:
      return "fp32";
    case DType::BF16:
      return "bf16";
    case DType::F16:
      return "fp16";
    case DType::I64:
      return "int64";
    case DType::I32:
      return "int32";
    case DType::U8:
      return "uint8";
    case DType::F8:
      return "fp8";
  }
  return "?";
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

}  // namespace kintsugi
