#include "data/sampling/token_stream.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/counting_store.h"

namespace kintsugi {
namespace {

std::vector<std::int32_t> all_of(const TokenStream& stream) {
  std::vector<TokenRange> ranges;
  stream.locate(0, stream.tokens(), ranges);
  return tokens_of(ranges);
}

std::vector<std::int32_t> range(std::int32_t first, std::int32_t end) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(end - first));
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(TokenStreamTest, EveryStretchOfSeveralShards) {
  const TemporaryDirectory directory;
  std::vector<TokenShard> shards;
  shards.push_back(counting_shard(directory, "a", {3, 2}));
  shards.push_back(counting_shard(directory, "b", {0}, 5));
  shards.push_back(counting_shard(directory, "c", {1}, 5));
  shards.push_back(counting_shard(directory, "d", {10}, 6));
  // The last range starts at the third token of its shard.
  const TokenStream stream(
      {{&shards[0], 0, 5}, {&shards[1], 0, 0}, {&shards[2], 0, 1}, {&shards[3], 2, 7}});
  ASSERT_EQ(stream.tokens(), 13);
  std::vector<std::int32_t> expected = range(0, 6);
  for (const std::int32_t id : range(8, 15)) expected.push_back(id);
  for (std::int64_t first = 0; first <= 13; ++first)
    for (std::int64_t count = 0; first + count <= 13; ++count) {
      std::vector<TokenRange> ranges;
      stream.locate(first, count, ranges);
      EXPECT_EQ(tokens_of(ranges),
                std::vector(expected.begin() + first, expected.begin() + first + count));
      for (const TokenRange& range : ranges) EXPECT_GT(range.count, 0);
    }
}

TEST(HoldOutTest, TheLastDocumentsOfEachShard) {
  const TemporaryDirectory directory;
  std::vector<TokenShard> shards;
  shards.push_back(counting_shard(directory, "a", {10, 1, 1, 1, 7}));
  shards.push_back(counting_shard(directory, "b", {2, 2, 2, 2, 2, 2, 2, 2, 2, 82}, 100));
  const HeldOut split = hold_out(shards, 0.2);
  std::vector<std::int32_t> train = range(0, 13), valid = range(13, 20);
  for (const std::int32_t id : range(100, 116)) train.push_back(id);
  for (const std::int32_t id : range(116, 200)) valid.push_back(id);
  EXPECT_EQ(all_of(split.train), train);
  EXPECT_EQ(all_of(split.valid), valid);
  EXPECT_EQ(hold_out(shards, 0.0).train.tokens(), 120);
  EXPECT_EQ(hold_out(shards, 0.0).valid.tokens(), 0);
}

// A text is one document: its last tokens are held out.
TEST(HoldOutTest, TheLastTokensWhereDocumentsAreTooFew) {
  const TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i);
  std::vector<TokenShard> shards = one_shard(TokenShard::open_text(directory.write("a.txt", text)));
  shards.push_back(counting_shard(directory, "b", {30, 30, 40}, 100));
  for (const double fraction : {0.05, 0.1, 0.25}) {
    const auto held = static_cast<std::int32_t>(100 * fraction);
    const HeldOut split = hold_out(shards, fraction);
    std::vector<std::int32_t> valid = range(100 - held, 100);
    for (const std::int32_t id : range(200 - held, 200)) valid.push_back(id);
    EXPECT_EQ(all_of(split.valid), valid) << fraction;
    EXPECT_EQ(split.train.tokens(), 200 - 2 * held);
  }
}

// Files may be sorted by label: held-out examples are spread, and whole.
TEST(TokenStreamTest, ExamplesAreHeldOutWholeAndSpread) {
  const TemporaryDirectory directory;
  const auto documents = [](const TokenStream& stream) {
    std::vector<std::int64_t> found;
    for (const TokenRange& part : stream.parts())
      for (std::int64_t token = part.first; token < part.first + part.count; token += 3)
        found.push_back(token / 3);
    return found;
  };
  const auto shards = one_shard(counting_shard(directory, "e", std::vector<std::int32_t>(10, 3)));
  const HeldOut third = hold_out_examples(shards, 0.3);
  EXPECT_EQ(documents(third.valid), (std::vector<std::int64_t>{2, 5, 9}));
  EXPECT_EQ(documents(third.train), (std::vector<std::int64_t>{0, 1, 3, 4, 6, 7, 8}));
  EXPECT_EQ(documents(hold_out_examples(shards, 0.01).valid), (std::vector<std::int64_t>{9}));
  EXPECT_EQ(hold_out_examples(shards, 0).valid.tokens(), 0);
  EXPECT_EQ(hold_out_examples(shards, 0).train.tokens(), 30);
  // The number of ranges is limited.
  const auto many = one_shard(counting_shard(directory, "m", std::vector<std::int32_t>(4000, 3)));
  const HeldOut half = hold_out_examples(many, 0.5);
  EXPECT_EQ(half.valid.tokens(), 6000);
  EXPECT_EQ(half.train.tokens(), 6000);
  EXPECT_EQ(half.valid.parts().size(), 512u);
}

}  // namespace
}  // namespace kintsugi
