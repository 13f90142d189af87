#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/raw_model.h"
#include "tensor/dtype.h"

namespace kintsugi {
namespace {

double rounded_to(DType dtype, double value) {
  std::byte stored[8];
  from_doubles({&value, 1}, dtype, stored);
  double back = 0;
  to_doubles(stored, dtype, {&back, 1});
  return back;
}

TEST(Elements, AreRoundedOnce) {
  // Just above the middle of two bf16 numbers. Rounded to fp32 first, it would be the middle.
  EXPECT_EQ(rounded_to(DType::BF16, 1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7);
  EXPECT_EQ(rounded_to(DType::BF16, 1 + 0x1p-8), 1.0);
  EXPECT_EQ(rounded_to(DType::BF16, 1 + 0x3p-8 - 0x1p-40), 1 + 0x1p-7);
  EXPECT_EQ(rounded_to(DType::F16, 1 + 0x1p-11 + 0x1p-40), 1 + 0x1p-10);
  EXPECT_EQ(rounded_to(DType::F16, -(1 + 0x1p-11 + 0x1p-40)), -(1 + 0x1p-10));
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int> few(-3, 3);
  std::normal_distribution<double> normal;
  const struct {
    DType dtype;
    int bits;
  } types[] = {{DType::BF16, 8}, {DType::F16, 11}, {DType::F32, 24}, {DType::F64, 53}};
  for (const auto& [dtype, bits] : types)
    for (int i = 0; i < 20000; ++i) {
      // Half of them within 3 units of fp64 of a middle.
      double value = normal(random);
      if (std::fabs(value) < 0.001) continue;  // fp16 has subnormal numbers
      if (i % 2 == 0) value = nearest_with_bits(value, bits + 1) * (1 + few(random) * 0x1p-52);
      ASSERT_EQ(rounded_to(dtype, value), nearest_with_bits(value, bits)) << value << " " << bits;
    }
}

TEST(Elements, OverflowsAreCounted) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double values[] = {65504, 65519.9, 65520, -1e300, infinity, std::nan(""), -0.0};
  std::byte stored[sizeof values];
  const RoundingReport half = from_doubles(values, DType::F16, stored);
  EXPECT_EQ(half.overflows, 2u);
  EXPECT_EQ(half.non_finite, 2u);
  const RoundingReport bf = from_doubles(values, DType::BF16, stored);
  EXPECT_EQ(bf.overflows, 1u);
  EXPECT_EQ(bf.non_finite, 2u);
  double back[7];
  to_doubles(stored, DType::BF16, back);
  EXPECT_EQ(back[3], -infinity);
  EXPECT_TRUE(std::isnan(back[5]));
  EXPECT_TRUE(std::signbit(back[6]));
  EXPECT_EQ(from_doubles(values, DType::F64, stored).overflows, 0u);
}

TEST(Elements, IntegersAreRead) {
  const std::int64_t wide[] = {-5, std::int64_t{1} << 40};
  double values[2];
  to_doubles(reinterpret_cast<const std::byte*>(wide), DType::I64, values);
  EXPECT_EQ(values[0], -5);
  EXPECT_EQ(values[1], 0x1p40);
}

}  // namespace
}  // namespace kintsugi
