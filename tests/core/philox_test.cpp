#include "core/philox.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "support/chi_square.h"

namespace kintsugi {
namespace {

// The words of a counter, lowest first, as Random123 lists them.
constexpr std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}

// From Random123's kat_vectors, philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox::draw(0, 0, 0), (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::draw(~0ull, ~0ull, ~0ull),
            (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox::draw(joined(0xa4093822, 0x299f31d0), joined(0x243f6a88, 0x85a308d3),
                         joined(0x13198a2e, 0x03707344)),
            (Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsKnownAtCompileTime) {
  static_assert(Philox::draw(0, 0)[0] == 0x6627e8d5);
  static_assert(derive_key(1, 2) != derive_key(1, 3));
}

TEST(Philox, UniformIsBelowOneAndExactIn24Bits) {
  EXPECT_EQ(Philox::uniform(0), 0.0f);
  EXPECT_EQ(Philox::uniform(0xFF), 0.0f);
  EXPECT_EQ(Philox::uniform(0x100), 0x1p-24f);
  EXPECT_EQ(Philox::uniform(0x80000000), 0.5f);
  EXPECT_EQ(Philox::uniform(0xFFFFFFFF), 1.0f - 0x1p-24f);
}

TEST(Philox, EveryWordIsUniform) {
  for (std::size_t word = 0; word < 4; ++word) {
    std::vector<double> bins(64, 0.0);
    for (std::uint64_t i = 0; i < 64000; ++i) {
      const float u = Philox::uniform(Philox::draw(99, i)[word]);
      bins[static_cast<std::size_t>(u * 64)] += 1;
    }
    EXPECT_LT(uniform_deviation(bins), 5) << word;
  }
}

TEST(DeriveKey, EveryPartCounts) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t b = 0; b < 120; ++b)
    for (std::uint64_t c = 0; c < 120; ++c) keys.insert(derive_key(7, b, c));
  EXPECT_EQ(keys.size(), 120u * 120u);
  EXPECT_NE(derive_key(7, 1, 2), derive_key(8, 1, 2));
}

// A good mixer flips half of the output for any flipped bit of the input.
TEST(DeriveKey, OneBitChangesHalfOfTheOutput) {
  double flipped = 0;
  for (std::uint64_t value = 0; value < 200; ++value)
    for (int bit = 0; bit < 64; ++bit) {
      const std::uint64_t mask = std::uint64_t{1} << bit;
      flipped += std::popcount(derive_key(value, 5, 6) ^ derive_key(value ^ mask, 5, 6));
      flipped += std::popcount(derive_key(5, value, 6) ^ derive_key(5, value ^ mask, 6));
      flipped += std::popcount(derive_key(5, 6, value) ^ derive_key(5, 6, value ^ mask));
    }
  EXPECT_NEAR(flipped / (3 * 200 * 64), 32.0, 0.5);
}

}  // namespace
}  // namespace kintsugi
