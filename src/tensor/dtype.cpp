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

}  // namespace kintsugi
