#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "model/shard.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using Row = std::vector<std::int32_t>;

Row positions(const ContextShard& shard) {
  Row row;
  for (std::int64_t i = 0; i < shard.local_length(); ++i)
    row.push_back(static_cast<std::int32_t>(shard.position(i)));
  return row;
}

TEST(ContextShard, AnEarlyAndALateChunk) {
  EXPECT_EQ(positions({2, 0, 8}), (Row{0, 1, 6, 7}));
  EXPECT_EQ(positions({2, 1, 8}), (Row{2, 3, 4, 5}));
  EXPECT_EQ(positions({3, 1, 12}), (Row{2, 3, 8, 9}));
  EXPECT_EQ(positions({1, 0, 5}), (Row{0, 1, 2, 3, 4}));
}

TEST(ContextShard, EveryTokenIsSomewhereOnceAndCostsAreEqual) {
  for (const int ranks : {2, 3, 4, 8, 64}) {
    const std::int64_t length = 2 * ranks * 5;
    std::vector<int> seen(static_cast<std::size_t>(length));
    for (int rank = 0; rank < ranks; ++rank) {
      const Row row = positions({ranks, rank, length});
      EXPECT_TRUE(std::is_sorted(row.begin(), row.end()));
      std::int64_t pairs = 0;  // of a query and a visible key
      for (const std::int32_t position : row) {
        ++seen[static_cast<std::size_t>(position)];
        pairs += position + 1;
      }
      EXPECT_EQ(pairs * ranks, length * (length + 1) / 2);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), length);
  }
}

TEST(ContextShard, ConsecutiveTokensForUlysses) {
  constexpr auto kUlysses = ContextMethod::Ulysses;
  EXPECT_EQ(positions({2, 1, 6, kUlysses}), (Row{3, 4, 5}));
  EXPECT_EQ(positions({3, 0, 12, kUlysses}), (Row{0, 1, 2, 3}));
  EXPECT_EQ(positions({1, 0, 3, kUlysses}), (Row{0, 1, 2}));
}

TEST(ContextShard, LengthsThatCannotBeSharded) {
  EXPECT_NO_THROW(check_context_shard(24, 4));
  EXPECT_NO_THROW(check_context_shard(7, 1));
  EXPECT_EQ(user_error_of([] { check_context_shard(100, 8); }),
            "sequences of 100 tokens cannot be sharded over 8 ranks: context parallelism needs a "
            "sequence length that is a multiple of 16");
  EXPECT_FALSE(user_error_of([] { check_context_shard(0, 2); }).empty());
}

// Compares with a search through the keys of each rank.
TEST(ContextShard, FirstVisibleKeys) {
  std::mt19937 random(7);
  for (const int ranks : {1, 2, 3, 8}) {
    const std::int64_t length = 2 * ranks * 3, sequences = 3;
    for (int rank = 0; rank < ranks; ++rank) {
      const ContextShard shard{ranks, rank, length};
      const std::int64_t local = shard.local_length();
      Row starts, expected;
      for (std::int64_t i = 0; i < sequences * local; ++i)
        starts.push_back(static_cast<std::int32_t>(
            random() % static_cast<unsigned>(shard.position(i % local) + 1)));
      for (int source = 0; source < ranks; ++source) {
        const Row keys = positions({ranks, source, length});
        for (const std::int32_t start : starts)
          expected.push_back(static_cast<std::int32_t>(
              std::lower_bound(keys.begin(), keys.end(), start) - keys.begin()));
      }
      Row found(expected.size(), -1);
      first_visible_keys(found, shard, starts);
      EXPECT_EQ(found, expected) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(ContextShard, OneRankKeepsItsDocumentStarts) {
  const Row starts = {0, 0, 2, 2, 4};
  Row found(5);
  first_visible_keys(found, {1, 0, 5}, starts);
  EXPECT_EQ(found, starts);
}

}  // namespace
}  // namespace kintsugi
