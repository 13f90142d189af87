#include "data/sampling/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/counting_store.h"

namespace kintsugi {
namespace {

TokenStream whole(const std::vector<TokenShard>& shards) { return hold_out(shards, 0.0).train; }

// The first token of sample k. Checks that the sample has length + 1 consecutive tokens of a
// counting stream.
std::int64_t start_of(const SampleOrder& order, std::int64_t k, std::int64_t length) {
  std::vector<TokenRange> ranges;
  order.locate(k, ranges);
  const auto tokens = tokens_of(ranges);
  EXPECT_EQ(tokens.size(), static_cast<std::size_t>(length) + 1);
  for (std::size_t i = 1; i < tokens.size(); ++i) EXPECT_EQ(tokens[i], tokens[i - 1] + 1);
  return tokens.front();
}

// One window fewer than would fit, so that each epoch can start at another offset.
std::int64_t epoch_of(std::int64_t tokens, std::int64_t length) {
  const std::int64_t windows = (tokens - 1) / length;
  return windows > 1 ? windows - 1 : windows;
}

class ShuffledOrderTest : public testing::Test {
 protected:
  // Tokens 0 … count - 1 in three shards of a few documents each.
  std::vector<TokenShard> corpus(std::int32_t count) {
    const std::int32_t third = count / 3;
    std::vector<TokenShard> shards;
    shards.push_back(counting_shard(directory_, name(), {third}));
    shards.push_back(counting_shard(directory_, name(), {1, third - 1}, third));
    shards.push_back(counting_shard(directory_, name(), {0, count - 2 * third, 0}, 2 * third));
    return shards;
  }
  std::string name() { return "shard" + std::to_string(names_++); }

  TemporaryDirectory directory_;
  int names_ = 0;
};

TEST_F(ShuffledOrderTest, AnEpochSeesEachOfItsWindowsOnce) {
  constexpr std::int64_t length = 12;
  for (const std::int32_t tokens : {13, 24, 25, 26, 37, 100, 120, 121, 122, 1000, 4003}) {
    const auto shards = corpus(tokens);
    const TokenStream stream = whole(shards);
    ASSERT_EQ(stream.tokens(), tokens);
    const ShuffledOrder order(windows_over({&stream}, length), {1}, length, 5);
    const std::int64_t windows = epoch_of(tokens, length);
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::set<std::int64_t> starts;
      for (std::int64_t i = 0; i < windows; ++i) {
        const std::int64_t k = epoch * windows + i;
        std::vector<TokenRange> ranges;
        EXPECT_EQ(order.locate(k, ranges).epoch, epoch);
        ASSERT_TRUE(starts.insert(start_of(order, k, length)).second) << "twice, of " << tokens;
      }
      // Adjacent windows share one token: they start every `length` tokens.
      std::int64_t expected = *starts.begin();
      for (const std::int64_t start : starts) {
        EXPECT_EQ(start, expected);
        expected += length;
      }
    }
  }
}

TEST_F(ShuffledOrderTest, EveryTokenIsReachedOverTheEpochs) {
  constexpr std::int64_t length = 8, tokens = 101;
  const auto shards = corpus(tokens);
  const TokenStream stream = whole(shards);
  const ShuffledOrder order(windows_over({&stream}, length), {1}, length, 1);
  std::set<std::int64_t> starts;
  for (std::int64_t k = 0; k < 200 * epoch_of(tokens, length); ++k)
    starts.insert(start_of(order, k, length));
  EXPECT_EQ(starts.size(), static_cast<std::size_t>(tokens - length)) << "every window that fits";
  EXPECT_EQ(*starts.begin(), 0);
}

TEST_F(ShuffledOrderTest, EpochsDifferInOrderAndOffset) {
  constexpr std::int64_t length = 10, tokens = 1003;
  const auto shards = corpus(tokens);
  const TokenStream stream = whole(shards);
  const ShuffledOrder order(windows_over({&stream}, length), {1}, length, 1);
  const std::int64_t windows = epoch_of(tokens, length);
  std::set<std::vector<std::int64_t>> orders;
  std::set<std::int64_t> offsets;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<std::int64_t> starts;
    for (std::int64_t i = 0; i < windows; ++i)
      starts.push_back(start_of(order, epoch * windows + i, length));
    const std::int64_t offset = *std::min_element(starts.begin(), starts.end());
    offsets.insert(offset);
    EXPECT_FALSE(std::is_sorted(starts.begin(), starts.end()));
    for (std::int64_t& start : starts) start = (start - offset) / length;
    orders.insert(starts);
  }
  EXPECT_EQ(orders.size(), 20u);
  EXPECT_GT(offsets.size(), 5u);
}

TEST_F(ShuffledOrderTest, ASampleIsAFunctionOfItsNumberAndTheSeed) {
  constexpr std::int64_t length = 9;
  const auto first = corpus(700), second = corpus(300);
  const TokenStream a = whole(first), b = whole(second);
  const auto order_of = [&](std::uint64_t seed) {
    return ShuffledOrder(windows_over({&a, &b}, length), {2, 1}, length, seed);
  };
  const ShuffledOrder forwards = order_of(3), other_seed = order_of(4);
  std::vector<std::int64_t> starts;
  for (std::int64_t k = 0; k < 500; ++k) starts.push_back(start_of(forwards, k, length));
  const ShuffledOrder fresh = order_of(3);
  for (std::int64_t k = 499; k >= 0; --k)
    ASSERT_EQ(start_of(fresh, k, length), starts[static_cast<std::size_t>(k)]) << "backwards " << k;
  const std::int64_t far = 123'456'789'012;
  EXPECT_EQ(start_of(fresh, far, length), start_of(forwards, far, length));
  int same = 0;
  for (std::int64_t k = 0; k < 500; ++k)
    same += start_of(other_seed, k, length) == starts[static_cast<std::size_t>(k)];
  EXPECT_LT(same, 50) << "another seed, another order";
}

TEST_F(ShuffledOrderTest, EachSourceOfABlendIsReadInWholeEpochs) {
  constexpr std::int64_t length = 6;
  const auto first = corpus(200), second = corpus(333);
  const TokenStream streams[] = {whole(first), whole(second)};
  const ShuffledOrder order(windows_over({&streams[0], &streams[1]}, length), {2, 5}, length, 9);
  std::vector<std::int64_t> starts[2];
  for (std::int64_t k = 0; k < 3000; ++k) {
    std::vector<TokenRange> ranges;
    starts[order.locate(k, ranges).source].push_back(start_of(order, k, length));
  }
  for (int source = 0; source < 2; ++source) {
    const auto windows = epoch_of(streams[source].tokens(), length);
    const auto& all = starts[source];
    for (auto begin = all.begin(); all.end() - begin >= windows; begin += windows)
      ASSERT_EQ(std::set(begin, begin + windows).size(), static_cast<std::size_t>(windows));
  }
}

TEST_F(ShuffledOrderTest, TheFingerprintTellsDataAndSharesApart) {
  const auto shards = corpus(300), others = corpus(301);
  const TokenStream all = whole(shards), part = hold_out(shards, 0.3).train, other = whole(others);
  const auto fingerprint = [](const TokenStream& stream, std::uint64_t weight,
                              std::int64_t length) {
    return ShuffledOrder(windows_over({&stream, &stream}, length), {weight, 7}, length, 1)
        .fingerprint();
  };
  std::set<std::uint64_t> prints;
  prints.insert(fingerprint(all, 1, 8));
  prints.insert(fingerprint(part, 1, 8));
  prints.insert(fingerprint(other, 1, 8));
  prints.insert(fingerprint(all, 2, 8));
  prints.insert(fingerprint(all, 1, 9));
  EXPECT_EQ(prints.size(), 5u);
  EXPECT_TRUE(prints.contains(fingerprint(all, 1, 8)));
  const ShuffledOrder other_seed(windows_over({&all}, 8), {1}, 8, 77);
  EXPECT_FALSE(prints.contains(other_seed.fingerprint()));
}

}  // namespace
}  // namespace kintsugi
