// The expected values come from Megatron's rules with numpy's generator.
#include "data/sampling/megatron_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "model/model_test_util.h"
#include "support/counting_store.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;
using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

const std::vector<std::int32_t> kLengths = {5, 3, 7, 2, 6};

Numbers documents_of(const MegatronIndex& index) {
  return {index.documents.begin(), index.documents.end()};
}

Pairs pairs_of(const MegatronIndex& index) {
  Pairs pairs;
  for (std::size_t i = 0; i < index.position.size(); ++i)
    pairs.emplace_back(index.position[i], index.offset[i]);
  return pairs;
}

TEST(MegatronPermutation, GoldenValues) {
  EXPECT_EQ(megatron_permutation(10, 0), (Numbers{2, 8, 4, 9, 1, 6, 7, 3, 0, 5}));
  EXPECT_EQ(megatron_permutation(10, 42), (Numbers{8, 1, 5, 0, 7, 2, 9, 4, 3, 6}));
  EXPECT_EQ(megatron_permutation(10, 1234), (Numbers{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
}

TEST(MegatronIndexTest, OneEpoch) {
  const MegatronIndex index = build_megatron_index(kLengths, 5, 4, 1234);
  EXPECT_EQ(index.epochs, 1);
  EXPECT_FALSE(index.separate_last_epoch);
  EXPECT_EQ(documents_of(index), (Numbers{4, 0, 1, 2, 3}));
  EXPECT_EQ(pairs_of(index), (Pairs{{0, 0}, {0, 4}, {1, 2}, {2, 1}, {3, 2}, {3, 6}}));
  EXPECT_EQ(index.shuffle, (Numbers{3, 2, 1, 0, 4}));
}

TEST(MegatronIndexTest, TwoEpochsTheLastSeparate) {
  const MegatronIndex index = build_megatron_index(kLengths, 7, 4, 1234);
  EXPECT_EQ(index.epochs, 2);
  EXPECT_TRUE(index.separate_last_epoch);
  EXPECT_EQ(documents_of(index), (Numbers{4, 0, 1, 2, 3, 3, 2, 1, 0, 4}));
  EXPECT_EQ(pairs_of(index), (Pairs{{0, 0},
                                    {0, 4},
                                    {1, 2},
                                    {2, 1},
                                    {3, 2},
                                    {3, 6},
                                    {5, 1},
                                    {6, 3},
                                    {7, 0},
                                    {8, 1},
                                    {9, 0},
                                    {9, 4}}));
  EXPECT_EQ(index.shuffle, (Numbers{2, 0, 4, 3, 1, 6, 10, 7, 5, 9, 8}));
}

TEST(MegatronIndexTest, ThreeEpochsTheLastSeparate) {
  const MegatronIndex index = build_megatron_index(kLengths, 12, 4, 1234);
  EXPECT_EQ(index.epochs, 3);
  EXPECT_TRUE(index.separate_last_epoch);
  EXPECT_EQ(documents_of(index), (Numbers{2, 2, 4, 1, 0, 3, 4, 0, 1, 3, 0, 4, 3, 2, 1}));
  EXPECT_EQ(index.shuffle, (Numbers{3, 9, 2, 1, 7, 5, 4, 0, 8, 6, 10, 16, 12, 15, 14, 11, 13}));
}

TEST(MegatronSplitTest, RoundsHalvesToEven) {
  using Ends = std::array<std::int64_t, 4>;
  EXPECT_EQ(megatron_split(parse_megatron_split("949,50,1"), 1000), (Ends{0, 949, 999, 1000}));
  EXPECT_EQ(megatron_split(parse_megatron_split("1,1"), 5), (Ends{0, 2, 5, 5})) << "2.5 to 2";
  EXPECT_EQ(megatron_split(parse_megatron_split("0.5,0.5,0"), 7), (Ends{0, 4, 7, 7})) << "3.5";
  EXPECT_EQ(megatron_split(parse_megatron_split("100"), 7), (Ends{0, 7, 7, 7}));
  for (const char* wrong : {"", "a", "1,2,3,4", "1,,2", "-1,2", "0,1", "1,", "nan"})
    EXPECT_THAT(user_error_of([&] { parse_megatron_split(wrong); }), HasSubstr("not a split"))
        << wrong;
}

// Concatenates the documents in their shuffled order; sample s is tokens s * S … s * S + S of that.
TEST(MegatronOrderTest, SamplesAreWindowsOfTheShuffledDocuments) {
  const TemporaryDirectory directory;
  const auto documents = counting_documents(kLengths);
  const TokenShard shard = TokenShard::open(write_store(directory, "a", documents));
  for (const std::int64_t samples : {5, 7, 12}) {
    const MegatronIndex index = build_megatron_index(kLengths, samples, 4, 1234);
    std::vector<std::int32_t> row;
    for (const std::int32_t document : index.documents)
      row.insert(row.end(), documents[static_cast<std::size_t>(document)].begin(),
                 documents[static_cast<std::size_t>(document)].end());
    const MegatronOrder order({{&shard, 0, 5, {}, "a"}}, samples, 4, 1234);
    for (std::int64_t k = 0; k < samples; ++k) {
      std::vector<TokenRange> ranges;
      order.locate(k, ranges);
      const std::int64_t first = 4 * index.shuffle[static_cast<std::size_t>(k)];
      EXPECT_EQ(tokens_of(ranges), std::vector(row.begin() + first, row.begin() + first + 5)) << k;
    }
  }
}

// A split and a blend: each source is read as if it were the only one.
TEST(MegatronOrderTest, ABlendTakesTheSamplesOfItsSourcesInOrder) {
  const TemporaryDirectory directory;
  const std::vector<std::int32_t> lengths = {9, 4, 11, 3, 30, 6, 14};
  const TokenShard a = counting_shard(directory, "a", lengths, 0);
  const TokenShard b = counting_shard(directory, "b", lengths, 1000);
  const std::vector<MegatronOrder::Source> sources = {{&a, 0, 5, 3, "a"}, {&b, 2, 5, 1, "b"}};
  const std::int64_t samples = 200;
  const MegatronOrder blend(sources, samples, 6, 7);
  const MegatronBlend choices = build_megatron_blend({0.75, 0.25}, samples);
  // ceil(ceil(200 * 0.75) * 1.005) and ceil(ceil(200 * 0.25) * 1.005)
  const MegatronOrder first({{&a, 0, 5, {}, "a"}}, 151, 6, 7),
      second({{&b, 2, 5, {}, "b"}}, 51, 6, 7);
  std::map<std::size_t, std::int64_t> counts;
  for (std::int64_t k = 0; k < samples; ++k) {
    std::vector<TokenRange> ranges, expected;
    const std::size_t source = blend.locate(k, ranges).source;
    ASSERT_EQ(source, static_cast<std::size_t>(choices.source[static_cast<std::size_t>(k)]));
    (source == 0 ? first : second).locate(counts[source]++, expected);
    EXPECT_EQ(ranges, expected) << k;
    for (const std::int32_t id : tokens_of(ranges))
      EXPECT_TRUE(source == 0 ? id < 57 : id >= 1013) << "outside of its split: " << id;
  }
  EXPECT_EQ(counts[0], 150);
}

// "--data-path 1.0 a" prepares ceil(S * 1.005) samples, "--data-path a" prepares S: here one needs
// two epochs and the other one, so the shuffles differ.
TEST(MegatronOrderTest, OneSourceWithAWeightIsAskedForMore) {
  const TemporaryDirectory directory;
  const TokenShard shard = counting_shard(directory, "a", kLengths);  // 23 tokens, 5 samples of 4
  const auto tokens = [&](const MegatronOrder& order) {
    std::vector<std::vector<std::int32_t>> samples;
    for (std::int64_t k = 0; k < 5; ++k) {
      std::vector<TokenRange> ranges;
      order.locate(k, ranges);
      samples.push_back(tokens_of(ranges));
    }
    return samples;
  };
  const MegatronOrder plain({{&shard, 0, 5, {}, "a"}}, 5, 4, 1234);
  const MegatronOrder weighted({{&shard, 0, 5, 0.3, "a"}}, 5, 4, 1234);
  EXPECT_NE(tokens(plain), tokens(weighted));
  EXPECT_EQ(tokens(weighted), tokens(MegatronOrder({{&shard, 0, 5, {}, "a"}}, 6, 4, 1234)));
  EXPECT_NE(plain.fingerprint(), weighted.fingerprint());
}

// "--data-path a b": one epoch of each source, weighted by its samples.
TEST(MegatronOrderTest, SourcesWithoutWeightsGiveOneEpoch) {
  const TemporaryDirectory directory;
  const TokenShard a = counting_shard(directory, "a", kLengths),  // 5 samples
      b = counting_shard(directory, "b", {20, 21}, 1000),         // 10 samples
      c = counting_shard(directory, "c", {4}, 2000);              // none
  const std::vector<MegatronOrder::Source> sources = {{&a, 0, 5, {}, "a"}, {&b, 0, 2, {}, "b"}};
  const MegatronOrder order(sources, 15, 4, 3);
  std::map<std::size_t, std::set<std::vector<std::int32_t>>> seen;
  for (std::int64_t k = 0; k < 15; ++k) {
    std::vector<TokenRange> ranges;
    const std::size_t source = order.locate(k, ranges).source;
    seen[source].insert(tokens_of(ranges));
  }
  EXPECT_EQ(seen[0].size(), 5u) << "each sample once";
  EXPECT_EQ(seen[1].size(), 10u);
  EXPECT_EQ(order.shares(), (std::vector<double>{5.0 / 15, 10.0 / 15}));
  EXPECT_THAT(user_error_of([&] { MegatronOrder(sources, 16, 4, 3); }),
              AllOf(HasSubstr("16 samples"), HasSubstr("has 15"), HasSubstr("a weight")));
  EXPECT_THAT(user_error_of([&] {
                MegatronOrder({{&a, 0, 5, {}, "a"}, {&c, 0, 1, {}, "c"}}, 5, 4, 3);
              }),
              AllOf(HasSubstr("training split of c"), HasSubstr("weights")));
}

// Three tokens, samples of five: every sample spans several epochs.
TEST(MegatronOrderTest, ASourceShorterThanASampleIsReadAgainAndAgain) {
  const TemporaryDirectory directory;
  const TokenShard a = counting_shard(directory, "a", {3}),
                   b = counting_shard(directory, "b", {90}, 100);
  const MegatronOrder order({{&a, 0, 1, 1.0, "a"}, {&b, 0, 1, 1.0, "b"}}, 20, 4, 3);
  int from_a = 0;
  for (std::int64_t k = 0; k < 20; ++k) {
    std::vector<TokenRange> ranges;
    if (order.locate(k, ranges).source != 0) continue;
    const auto tokens = tokens_of(ranges);
    ASSERT_EQ(tokens.size(), 5u);
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_EQ(tokens[i], (tokens[0] + static_cast<std::int32_t>(i)) % 3);
    ++from_a;
  }
  EXPECT_EQ(from_a, 10);
}

// Up to 0.10: ceil(S * w * 1.005); later ceil(ceil(S * w) * 1.005).
TEST(MegatronOrderTest, VersionsUpTo010AskForOtherNumbers) {
  EXPECT_EQ(megatron_request(200, 0.5, MegatronVersion::V010), 101);
  EXPECT_EQ(megatron_request(201, 0.5, MegatronVersion::V010), 102) << "101.0025";
  EXPECT_EQ(megatron_request(201, 0.5, MegatronVersion::Newest), 102) << "ceil(101 * 1.005)";
  EXPECT_EQ(megatron_request(199, 0.5, MegatronVersion::V010), 100) << "99.9975";
  EXPECT_EQ(megatron_request(199, 0.5, MegatronVersion::Newest), 101) << "ceil(100 * 1.005)";
  const TemporaryDirectory directory;
  const TokenShard a = counting_shard(directory, "a", kLengths),
                   b = counting_shard(directory, "b", kLengths);
  const std::vector<MegatronOrder::Source> sources = {{&a, 0, 5, 1.0, "a"}, {&b, 0, 5, 1.0, "b"}};
  EXPECT_NE(MegatronOrder(sources, 199, 4, 3).fingerprint(),
            MegatronOrder(sources, 199, 4, 3, MegatronVersion::V010).fingerprint());
}

TEST(MegatronOrderTest, TheFingerprintTellsRunsApart) {
  const TemporaryDirectory directory;
  const TokenShard a = counting_shard(directory, "a", kLengths),
                   b = counting_shard(directory, "b", {5, 18});
  std::set<std::uint64_t> prints;
  prints.insert(MegatronOrder({{&a, 0, 5, {}, "a"}}, 10, 4, 1).fingerprint());
  prints.insert(MegatronOrder({{&a, 0, 4, {}, "a"}}, 10, 4, 1).fingerprint());
  prints.insert(MegatronOrder({{&b, 0, 2, {}, "b"}}, 10, 4, 1).fingerprint());
  prints.insert(MegatronOrder({{&a, 0, 5, {}, "a"}}, 11, 4, 1).fingerprint());
  prints.insert(MegatronOrder({{&a, 0, 5, {}, "a"}}, 10, 5, 1).fingerprint());
  // It includes everything that determines a blend: weights, which of them are given, the length.
  const auto blend = [&](std::optional<double> x, std::optional<double> y, std::int64_t samples) {
    return MegatronOrder({{&a, 0, 5, x, "a"}, {&b, 0, 2, y, "b"}}, samples, 4, 1).fingerprint();
  };
  prints.insert(blend({}, {}, 10));
  prints.insert(blend(1.0, 1.0, 10));
  prints.insert(blend(1.0, 1.0, 9));
  prints.insert(blend(0.3, 0.7, 10));
  EXPECT_EQ(prints.size(), 9u);
  EXPECT_EQ(blend(1.0, {}, 10), blend(2.0, 2.0, 10)) << "only proportions count";
  EXPECT_THAT(user_error_of([&] {
                MegatronOrder({{&a, 0, 5, {}, "a"}}, 10, 4, 1ull << 32);
              }),
              HasSubstr("32 bits"));
}

}  // namespace
}  // namespace kintsugi
