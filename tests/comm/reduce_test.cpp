#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kintsugi {
namespace {

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& parts, ReduceOp op) {
  std::vector<const void*> pointers;
  for (const auto& part : parts) pointers.push_back(part.data());
  std::vector<T> result(parts.front().size());
  reduce_parts(result.data(), pointers, static_cast<std::int64_t>(result.size()), DTypeOf<T>::value,
               op);
  return result;
}

// 256 + 1 rounds to 256 in bf16 and 2048 + 1 to 2048 in fp16; 258 and 2050 are exact.
TEST(Reduce, SixteenBitSumsAreRoundedOnce) {
  const bf16 one(1.0f);
  EXPECT_EQ(static_cast<float>(bf16(257.0f)), 256.0f);
  EXPECT_EQ(static_cast<float>(reduced<bf16>({{bf16(256.0f)}, {one}, {one}}, ReduceOp::Sum)[0]),
            258.0f);
  const f16 half_one(1.0f);
  EXPECT_EQ(
      static_cast<float>(reduced<f16>({{f16(2048.0f)}, {half_one}, {half_one}}, ReduceOp::Sum)[0]),
      2050.0f);
}

TEST(Reduce, SeveralBlocksAndADestinationThatIsAnInput) {
  const std::int64_t n = 5000;
  std::vector<double> a(n), b(n), c(n);
  for (std::int64_t i = 0; i < n; ++i) {
    a[i] = static_cast<double>(i);
    b[i] = 3.0;
    c[i] = -2.0 * static_cast<double>(i);
  }
  const void* parts[] = {a.data(), b.data(), c.data()};
  reduce_parts(b.data(), parts, n, DType::F64, ReduceOp::Sum);
  for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(b[i], 3.0 - static_cast<double>(i));
}

TEST(Reduce, AMaximumKeepsNaNAndLargeIntegers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto x = reduced<float>({{nan, 1, -5}, {2, nan, -7}, {3, 4, -6}}, ReduceOp::Max);
  EXPECT_TRUE(std::isnan(x[0]));
  EXPECT_TRUE(std::isnan(x[1]));
  EXPECT_EQ(x[2], -5);
  const std::int64_t large = (std::int64_t{1} << 60) + 1;  // not exact in double
  EXPECT_EQ(reduced<std::int64_t>({{large}, {1}}, ReduceOp::Max)[0], large);
  EXPECT_EQ(reduced<std::int64_t>({{large}, {1}}, ReduceOp::Sum)[0], large + 1);
}

}  // namespace
}  // namespace kintsugi
