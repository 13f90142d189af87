#include "tensor/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "model/model_test_util.h"

namespace kintsugi {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A binary format: mantissa bits without the implicit one, smallest exponent of a normal number,
// smallest value that rounds to infinity.
struct Format {
  int mantissa;
  int least_exponent;
  double overflow;
};
constexpr Format kHalf = {10, -14, 65520.0};
const Format kBrain = {7, -126, std::ldexp(511.0 / 256.0, 127)};

// The nearest number of the format, ties to even. Dividing by a power of two is exact in double,
// and nearbyint breaks ties to even.
double nearest(double x, const Format& format) {
  if (!std::isfinite(x) || x == 0) return x;
  if (std::abs(x) >= format.overflow) return std::copysign(static_cast<double>(kInfinity), x);
  const int exponent = std::max(std::ilogb(x), format.least_exponent);
  const double quantum = std::ldexp(1.0, exponent - format.mantissa);
  return std::nearbyint(x / quantum) * quantum;
}

// The value of a 16-bit pattern, by the definition of IEEE 754.
double meaning(std::uint16_t bits, const Format& format) {
  const int exponent = (bits & 0x7FFF) >> format.mantissa, largest = 0x7FFF >> format.mantissa;
  const double mantissa = bits & ((1 << format.mantissa) - 1);
  double value = 0;
  if (exponent == largest)
    value = mantissa == 0 ? static_cast<double>(kInfinity) : static_cast<double>(NAN);
  else if (exponent == 0)
    value = std::ldexp(mantissa, format.least_exponent - format.mantissa);
  else
    value = std::ldexp(mantissa + (1 << format.mantissa),
                       format.least_exponent - format.mantissa + exponent - 1);
  return bits & 0x8000 ? -value : value;
}

template <class T>
void expect_nearest(float x, const Format& format) {
  const auto stored = static_cast<double>(static_cast<float>(T(x)));
  const double expected = nearest(static_cast<double>(x), format);
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(stored));
    return;
  }
  ASSERT_EQ(stored, expected) << x << " " << std::hexfloat << x;
  ASSERT_EQ(std::signbit(stored), std::signbit(expected)) << x;
}

template <class T>
T of_bits(unsigned bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

template <class T>
void every_pattern_survives(const Format& format) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<float>(of_bits<T>(bits));
    const double expected = meaning(static_cast<std::uint16_t>(bits), format);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(value)))) << bits;
      ASSERT_EQ(T(value).bits & 0x8000, bits & 0x8000) << "sign";
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(T(value).bits, bits);
    }
  }
}

TEST(Half, EveryPatternSurvives) { every_pattern_survives<f16>(kHalf); }
TEST(Brain, EveryPatternSurvives) { every_pattern_survives<bf16>(kBrain); }

// Tests every tie (halfway between two adjacent values) and the floats just below and above it.
template <class T>
void every_tie_rounds_to_even(const Format& format) {
  for (unsigned bits = 0; bits < 0x7FFF; ++bits) {
    const auto low = static_cast<double>(static_cast<float>(of_bits<T>(bits)));
    auto high = static_cast<double>(static_cast<float>(of_bits<T>(bits + 1)));
    if (!std::isfinite(low)) break;
    if (!std::isfinite(high))
      high = 2 * format.overflow - low;  // the next value, if the format had one
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float x :
         {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInfinity)}) {
      ASSERT_NO_FATAL_FAILURE(expect_nearest<T>(x, format));
      ASSERT_NO_FATAL_FAILURE(expect_nearest<T>(-x, format));
    }
    if (low == 0) continue;
    const std::uint16_t rounded = T(middle).bits;
    ASSERT_EQ(rounded & 1, 0) << "a tie rounds to even";
    ASSERT_TRUE(rounded == bits || rounded == bits + 1);
  }
}

TEST(Half, EveryTieRoundsToEven) { every_tie_rounds_to_even<f16>(kHalf); }
TEST(Brain, EveryTieRoundsToEven) { every_tie_rounds_to_even<bf16>(kBrain); }

template <class T>
void random_floats_round_to_nearest(const Format& format) {
  std::mt19937 random(3);
  for (int i = 0; i < 400000; ++i) {
    const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    ASSERT_NO_FATAL_FAILURE(expect_nearest<T>(any, format));
    // Most floats are outside the range of fp16. These are inside, including subnormals and
    // overflows.
    const double spread =
        std::ldexp(1.0 + random() * 0x1p-32, static_cast<int>(random() % 46) - 28);
    ASSERT_NO_FATAL_FAILURE(
        expect_nearest<T>(static_cast<float>(random() % 2 == 0 ? spread : -spread), format));
  }
}

TEST(Half, RandomFloatsRoundToNearest) { random_floats_round_to_nearest<f16>(kHalf); }
TEST(Brain, RandomFloatsRoundToNearest) { random_floats_round_to_nearest<bf16>(kBrain); }

TEST(Half, Landmarks) {
  EXPECT_EQ(f16(1.0f).bits, 0x3C00);
  EXPECT_EQ(f16(-2.0f).bits, 0xC000);
  EXPECT_EQ(f16(65504.0f).bits, 0x7BFF);
  EXPECT_EQ(f16(65519.996f).bits, 0x7BFF);
  EXPECT_EQ(f16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(f16(1e30f).bits, 0x7C00);
  EXPECT_EQ(f16(-kInfinity).bits, 0xFC00);
  EXPECT_EQ(f16(0x1p-14f).bits, 0x0400);
  EXPECT_EQ(f16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(f16(0x1p-25f).bits, 0x0000) << "halfway to the smallest number: even is zero";
  EXPECT_EQ(f16(0x1.000002p-25f).bits, 0x0001);
  EXPECT_EQ(f16(-0.0f).bits, 0x8000);
  EXPECT_EQ(f16(1.0f / 3.0f).bits, 0x3555);
}

TEST(Brain, Landmarks) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3F80);
  EXPECT_EQ(bf16(-2.0f).bits, 0xC000);
  EXPECT_EQ(bf16(3.14159265f).bits, 0x4049);
  EXPECT_EQ(bf16(1.00390625f).bits, 0x3F80) << "1 + 2^-8 is a tie: even is 1";
  EXPECT_EQ(bf16(1.01171875f).bits, 0x3F82) << "1 + 3 * 2^-8 is a tie: even is above";
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7F80) << "rounds to infinity";
  EXPECT_EQ(bf16(kInfinity).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7F800001u)))))
      << "a NaN with low bits only";
}

TEST(DTypes, NamesAndSizes) {
  EXPECT_EQ(parse_precision("bf16"), DType::BF16);
  EXPECT_EQ(parse_precision("fp16"), DType::F16);
  EXPECT_EQ(parse_precision("fp32"), DType::F32);
  EXPECT_EQ(parse_precision("fp64"), DType::F64);
  for (const char* text : {"", "f32", "float", "int32", "FP16", "bf16 "})
    EXPECT_THAT(user_error_of([&] { parse_precision(text); }),
                testing::HasSubstr("not a precision"))
        << text;
  EXPECT_EQ(size_of(DType::F64), 8u);
  EXPECT_EQ(size_of(DType::F32), 4u);
  EXPECT_EQ(size_of(DType::BF16), 2u);
  EXPECT_EQ(size_of(DType::F16), 2u);
  EXPECT_EQ(size_of(DType::I64), 8u);
  EXPECT_EQ(size_of(DType::I32), 4u);
  EXPECT_EQ(size_of(DType::U8), 1u);
  EXPECT_EQ(accumulator_of(DType::F64), DType::F64);
  EXPECT_EQ(accumulator_of(DType::BF16), DType::F32);
}

TEST(DTypes, VisitFloatChoosesTheStorageType) {
  const auto bytes = [](DType dtype) {
    return visit_float(dtype, []<class T>() { return sizeof(T); });
  };
  EXPECT_EQ(bytes(DType::F64), 8u);
  EXPECT_EQ(bytes(DType::F32), 4u);
  EXPECT_EQ(bytes(DType::BF16), 2u);
  EXPECT_THROW(bytes(DType::I32), Failure);
}

}  // namespace
}  // namespace kintsugi
