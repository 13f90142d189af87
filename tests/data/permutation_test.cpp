#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "data/sampling/sample_order.h"
#include "support/chi_square.h"

namespace kintsugi {
namespace {

std::vector<std::uint64_t> images(std::uint64_t n, std::uint64_t key) {
  const Permutation permutation(n, key);
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 0; i < n; ++i) values.push_back(permutation(i));
  return values;
}

TEST(PermutationTest, IsABijection) {
  std::vector<std::uint64_t> sizes = {1000, 12345, 99991};
  for (std::uint64_t n = 1; n <= 300; ++n) sizes.push_back(n);
  for (std::uint64_t power = 4; power <= 65536; power *= 2)
    for (const std::uint64_t n : {power - 1, power, power + 1}) sizes.push_back(n);
  for (const std::uint64_t n : sizes)
    for (const std::uint64_t key : {0ull, 1ull, 0x123456789ABCDEFull, ~0ull}) {
      std::vector<std::uint64_t> values = images(n, key);
      std::sort(values.begin(), values.end());
      std::uint64_t expected = 0;
      for (const std::uint64_t value : values) ASSERT_EQ(value, expected++) << n << ", key " << key;
    }
}

TEST(PermutationTest, HugeRangesHaveNoCollisions) {
  for (const std::uint64_t n :
       {(1ull << 33) + 1, (1ull << 40) - 1, 1'000'000'000'000'000ull, 1ull << 63, ~0ull}) {
    const Permutation permutation(n, 42);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 5000; ++i) {
      const std::uint64_t low = permutation(i), high = permutation(n - 1 - i);
      EXPECT_LT(low, n);
      EXPECT_LT(high, n);
      seen.insert({low, high});
    }
    EXPECT_EQ(seen.size(), 10000u) << n;
  }
}

TEST(PermutationTest, TheKeyChangesTheOrder) {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t key = 0; key < 200; ++key) orders.insert(images(50, key));
  EXPECT_EQ(orders.size(), 200u);
  EXPECT_EQ(images(50, 9), images(50, 9));
}

// Over many keys, the first value, the last value and the difference of adjacent values are
// uniform.
TEST(PermutationTest, IsUniform) {
  for (const std::uint64_t n : {20, 33, 100}) {
    std::vector<double> first(n, 0.0), last(n, 0.0), distance(n - 1, 0.0);
    for (std::uint64_t key = 0; key < 500 * n; ++key) {
      const Permutation permutation(n, derive_key(3, key));
      const std::uint64_t a = permutation(0), b = permutation(1);
      first[a] += 1;
      last[permutation(n - 1)] += 1;
      distance[(b + n - a) % n - 1] += 1;
    }
    EXPECT_LT(uniform_deviation(first), 5) << n;
    EXPECT_LT(uniform_deviation(last), 5) << n;
    EXPECT_LT(uniform_deviation(distance), 5) << n;
  }
}

// With one key: counts how often a value is larger than the previous one, and how far values move.
// In a random permutation, half of the values are larger, and the mean distance is n / 3.
TEST(PermutationTest, OneOrderLooksShuffled) {
  constexpr std::uint64_t n = 20000;
  for (const std::uint64_t key : {1ull, 77ull, 123456789ull}) {
    const auto values = images(n, key);
    double rises = 0, moved = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      if (i > 0) rises += values[i] > values[i - 1];
      moved += std::abs(static_cast<double>(values[i]) - static_cast<double>(i));
    }
    EXPECT_NEAR(rises / n, 0.5, 0.02);
    EXPECT_NEAR(moved / n / n, 1.0 / 3.0, 0.01);
  }
}

TEST(PermutationTest, EveryOrderOfThreeOccurs) {
  std::map<std::vector<std::uint64_t>, int> orders;
  for (std::uint64_t key = 0; key < 6000; ++key) orders[images(3, derive_key(8, key))] += 1;
  ASSERT_EQ(orders.size(), 6u);
  for (const auto& [order, count] : orders) EXPECT_GT(count, 300);
}

}  // namespace
}  // namespace kintsugi
