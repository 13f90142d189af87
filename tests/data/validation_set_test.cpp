#include <gtest/gtest.h>

#include "data/sampling/sample_order.h"
#include "support/counting_store.h"

namespace kintsugi {
namespace {

TEST(ValidationSetTest, SpreadsItsSamplesEvenly) {
  constexpr std::int64_t length = 5;
  const TemporaryDirectory directory;
  std::vector<TokenShard> shards = one_shard(counting_shard(directory, "a", {500}));
  shards.push_back(counting_shard(directory, "b", {251}, 500));  // 150 windows in total
  const TokenStream stream = hold_out(shards, 0.0).train;
  const auto starts = [&](std::int64_t count) {
    const ValidationSet set("set", stream, length, count);
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < set.size(); ++i) {
      std::vector<TokenRange> ranges;
      set.locate(i, ranges);
      const auto tokens = tokens_of(ranges);
      EXPECT_EQ(tokens.size(), 6u);
      EXPECT_EQ(tokens.back() - tokens.front(), 5);
      all.push_back(tokens.front());
    }
    return all;
  };
  EXPECT_EQ(starts(0).size(), 150u) << "all of them";
  EXPECT_EQ(starts(1000).size(), 150u);
  const auto some = starts(15);
  ASSERT_EQ(some.size(), 15u);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(some[i], static_cast<std::int64_t>(50 * i));
}

TEST(ValidationSetTest, TooShortForOne) {
  const TemporaryDirectory directory;
  const auto shards = one_shard(counting_shard(directory, "a", {5}));
  const TokenStream stream = hold_out(shards, 0.0).train;
  EXPECT_EQ(ValidationSet("set", stream, 5, 0).size(), 0);
  EXPECT_EQ(ValidationSet("set", stream, 4, 0).size(), 1);
  EXPECT_EQ(ValidationSet("set", TokenStream(), 4, 3).size(), 0);
}

}  // namespace
}  // namespace kintsugi
