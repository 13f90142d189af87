#include "data/text_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "model/model_test_util.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

// Noise: any few bytes of it occur once, so that a sample tells where it was cut. `offset` keeps
// several apart.
Bytes noise(std::size_t count, std::uint8_t offset = 0, int letters = 256) {
  std::mt19937 random(1234);
  Bytes bytes(count);
  for (std::uint8_t& b : bytes)
    b = static_cast<std::uint8_t>(offset + random() % static_cast<unsigned>(letters));
  return bytes;
}

struct Sample {
  std::vector<std::int32_t> ids, targets;
  bool operator==(const Sample&) const = default;
};

Sample sample_of(const Sampler& sampler, std::int64_t k, std::int64_t length) {
  Sample sample{std::vector<std::int32_t>(static_cast<std::size_t>(length)), {}};
  sample.targets = sample.ids;
  sampler.training_sample(k, sample.ids.data(), sample.targets.data());
  return sample;
}

// Where in the corpus a sample stands: its ids, and its targets one place on. -1 if nowhere.
std::int64_t place_of(const Sample& sample, const Bytes& corpus) {
  const auto found =
      std::search(corpus.begin(), corpus.end(), sample.ids.begin(), sample.ids.end());
  if (found == corpus.end()) return -1;
  const auto room = static_cast<std::size_t>(corpus.end() - found);
  if (room <= sample.ids.size()) return -1;
  if (!std::equal(sample.targets.begin(), sample.targets.end(), found + 1)) return -1;
  return found - corpus.begin();
}

// How many samples an epoch has: one window fewer than fit, so that it can start at another offset
// each time.
std::int64_t epoch_of(std::int64_t tokens, std::int64_t length) {
  const std::int64_t windows = (tokens - 1) / length;
  return windows > 1 ? windows - 1 : windows;
}

TEST(SamplerTest, AnEpochSeesEachOfItsWindowsOnce) {
  constexpr std::int64_t length = 12;
  for (const std::int64_t tokens : {13, 24, 25, 26, 37, 100, 120, 121, 122, 1000, 4003}) {
    const Bytes corpus = noise(static_cast<std::size_t>(tokens));
    const Sampler sampler({{corpus, 1.0, "noise"}}, length, 5);
    const std::int64_t windows = epoch_of(tokens, length);
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::set<std::int64_t> starts;
      for (std::int64_t i = 0; i < windows; ++i) {
        const std::int64_t at = place_of(sample_of(sampler, epoch * windows + i, length), corpus);
        ASSERT_GE(at, 0) << "no part of a corpus of " << tokens;
        ASSERT_TRUE(starts.insert(at).second) << "twice in epoch " << epoch << " of " << tokens;
      }
      // Side by side, sharing one token: first start, then every `length`.
      std::int64_t expected = *starts.begin();
      for (const std::int64_t start : starts) {
        EXPECT_EQ(start, expected);
        expected += length;
      }
    }
  }
}

TEST(SamplerTest, EveryTokenIsReachedOverTheEpochs) {
  constexpr std::int64_t length = 8, tokens = 101;
  const Bytes corpus = noise(tokens);
  const Sampler sampler({{corpus, 1.0, "noise"}}, length, 1);
  std::set<std::int64_t> starts;
  for (std::int64_t k = 0; k < 200 * epoch_of(tokens, length); ++k)
    starts.insert(place_of(sample_of(sampler, k, length), corpus));
  EXPECT_EQ(starts.size(), static_cast<std::size_t>(tokens - length)) << "every window that fits";
  EXPECT_EQ(*starts.begin(), 0);
}

TEST(SamplerTest, EpochsDifferInOrderAndOffset) {
  constexpr std::int64_t length = 10, tokens = 1003;
  const Bytes corpus = noise(tokens);
  const Sampler sampler({{corpus, 1.0, "noise"}}, length, 1);
  const std::int64_t windows = epoch_of(tokens, length);
  std::set<std::vector<std::int64_t>> orders;
  std::set<std::int64_t> offsets;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < windows; ++i)
      order.push_back(place_of(sample_of(sampler, epoch * windows + i, length), corpus));
    const std::int64_t offset = *std::min_element(order.begin(), order.end());
    offsets.insert(offset);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    for (std::int64_t& place : order) place = (place - offset) / length;
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 20u);
  EXPECT_GT(offsets.size(), 5u);
}

TEST(SamplerTest, ASampleIsAFunctionOfItsNumberAndTheSeed) {
  constexpr std::int64_t length = 9;
  const Bytes first = noise(700), second = noise(300);
  const std::vector<Sampler::Source> sources = {{first, 2.0, "first"}, {second, 1.0, "second"}};
  const Sampler forwards(sources, length, 3), other_seed(sources, length, 4);
  std::vector<Sample> samples;
  for (std::int64_t k = 0; k < 500; ++k) samples.push_back(sample_of(forwards, k, length));
  const Sampler fresh(sources, length, 3);
  for (std::int64_t k = 499; k >= 0; --k)
    ASSERT_EQ(sample_of(fresh, k, length), samples[static_cast<std::size_t>(k)])
        << "backwards, sample " << k;
  const std::int64_t far = 123'456'789'012;
  EXPECT_EQ(sample_of(fresh, far, length), sample_of(forwards, far, length));
  int same = 0;
  for (std::int64_t k = 0; k < 500; ++k)
    same += sample_of(other_seed, k, length) == samples[static_cast<std::size_t>(k)];
  EXPECT_LT(same, 50) << "another seed, another order";
}

TEST(SamplerTest, ABlendFollowsItsWeights) {
  constexpr std::int64_t length = 7, count = 10000;
  const Bytes a = noise(500, 0, 64), b = noise(400, 64, 64), c = noise(300, 128, 64);
  const double weights[] = {0.5, 0.3, 0.2};
  // Only proportions count.
  const Sampler sampler({{a, 5.0, "a"}, {b, 3.0, "b"}, {c, 2.0, "c"}}, length, 9);
  double seen[3] = {};
  for (std::int64_t k = 0; k < count; ++k) {
    seen[sample_of(sampler, k, length).ids[0] / 64] += 1;
    // Never further than two samples from its share, from the first sample on.
    for (int i = 0; i < 3; ++i)
      ASSERT_NEAR(seen[i], weights[i] * static_cast<double>(k + 1),
                  2.0 + 1e-4 * static_cast<double>(k))
          << k;
  }
}

TEST(SamplerTest, EachSourceOfABlendIsReadInWholeEpochs) {
  constexpr std::int64_t length = 6;
  const Bytes a = noise(200, 0, 128), b = noise(333, 128, 128);
  const Sampler sampler({{a, 1.0, "a"}, {b, 2.5, "b"}}, length, 9);
  std::vector<std::int64_t> order[2];
  for (std::int64_t k = 0; k < 9000; ++k) {  // past the end of the blending pattern
    const Sample sample = sample_of(sampler, k, length);
    const int source = sample.ids[0] / 128;
    order[source].push_back(place_of(sample, source == 0 ? a : b));
    ASSERT_GE(order[source].back(), 0);
  }
  for (int source = 0; source < 2; ++source) {
    const auto windows = static_cast<std::size_t>(epoch_of(source == 0 ? 200 : 333, length));
    for (std::size_t begin = 0; begin + windows <= order[source].size(); begin += windows)
      ASSERT_EQ(std::set(order[source].begin() + static_cast<std::ptrdiff_t>(begin),
                         order[source].begin() + static_cast<std::ptrdiff_t>(begin + windows))
                    .size(),
                windows);
  }
}

TEST(SamplerTest, ACorpusShorterThanASampleIsNamed) {
  const Bytes corpus = noise(16);
  EXPECT_THAT(user_error_of([&] {
                Sampler({{corpus, 1.0, "short.txt"}}, 16, 1);
              }),
              AllOf(HasSubstr("short.txt"), HasSubstr("16 tokens"), HasSubstr("17")));
  const Bytes enough = noise(17);
  const Sampler sampler({{enough, 1.0, "enough.txt"}}, 16, 1);
  EXPECT_EQ(place_of(sample_of(sampler, 0, 16), enough), 0);
}

class TextCorpusTest : public testing::Test {
 protected:
  std::string file(const Bytes& bytes) {
    return directory_.write("corpus.txt", std::string(bytes.begin(), bytes.end()));
  }
  TemporaryDirectory directory_;
};

TEST_F(TextCorpusTest, HoldsOutItsEnd) {
  const Bytes bytes = noise(1000);
  for (const double fraction : {0.0, 0.05, 0.1, 0.333, 0.5}) {
    const TextCorpus corpus(file(bytes), fraction);
    const auto held_out = static_cast<std::size_t>(1000 * fraction);
    EXPECT_TRUE(std::equal(corpus.train().begin(), corpus.train().end(), bytes.begin(),
                           bytes.end() - held_out))
        << fraction;
    EXPECT_TRUE(std::equal(corpus.valid().begin(), corpus.valid().end(), bytes.end() - held_out,
                           bytes.end()))
        << fraction;
  }
}

// Bytes below 128 train, the others are held out.
TEST_F(TextCorpusTest, WhatIsHeldOutIsNeverTrained) {
  constexpr std::int64_t length = 8;
  Bytes bytes = noise(900, 0, 128);
  for (const std::uint8_t b : noise(100, 128, 128)) bytes.push_back(b);
  const TextCorpus corpus(file(bytes), 0.1);
  const Sampler sampler({{corpus.train(), 1.0, "corpus"}}, length, 2);
  for (std::int64_t k = 0; k < 20000; ++k) {
    const Sample sample = sample_of(sampler, k, length);
    ASSERT_LT(*std::max_element(sample.targets.begin(), sample.targets.end()), 128) << k;
    ASSERT_LT(sample.ids[0], 128);
  }
  const ValidationSet validation({corpus.valid()}, length, 0);
  EXPECT_EQ(validation.size(), 12) << "99 / 8 windows";
  Sample sample{std::vector<std::int32_t>(length), std::vector<std::int32_t>(length)};
  for (std::int64_t i = 0; i < validation.size(); ++i) {
    validation.sample(i, sample.ids.data(), sample.targets.data());
    EXPECT_EQ(place_of(sample, bytes), 900 + i * length);
  }
}

TEST_F(TextCorpusTest, EmptyAndMissingFilesAreNamed) {
  EXPECT_THAT(user_error_of([&] { TextCorpus(file({}), 0.1); }),
              AllOf(HasSubstr("corpus.txt"), HasSubstr("empty")));
  EXPECT_THAT(user_error_of([&] { TextCorpus(directory_ / "missing.txt", 0.1); }),
              HasSubstr("missing.txt"));
  EXPECT_THAT(user_error_of([&] { TextCorpus(directory_.path(), 0.1); }), HasSubstr("directory"));
}

TEST_F(TextCorpusTest, AVocabularyThatIsTooSmallIsNamedWithThePlace) {
  Bytes bytes = noise(500, 0, 100);
  bytes[321] = 150;
  const TextCorpus corpus(file(bytes), 0.5);
  EXPECT_NO_THROW(corpus.check_vocabulary(151));
  EXPECT_NO_THROW(corpus.check_vocabulary(50000));
  EXPECT_THAT(user_error_of([&] { corpus.check_vocabulary(150); }),
              AllOf(HasSubstr("corpus.txt"), HasSubstr("id 150"), HasSubstr("byte 321"),
                    HasSubstr("vocab_size is 150")));
}

TEST(ValidationSetTest, SpreadsItsSamplesEvenly) {
  constexpr std::int64_t length = 5;
  const Bytes first = noise(501, 0, 128), second = noise(251, 128, 128);  // 100 and 50 windows
  const auto starts = [&](std::int64_t count) {
    const ValidationSet set({first, second}, length, count);
    std::vector<std::int64_t> all;
    Sample sample{std::vector<std::int32_t>(length), std::vector<std::int32_t>(length)};
    for (std::int64_t i = 0; i < set.size(); ++i) {
      set.sample(i, sample.ids.data(), sample.targets.data());
      const bool in_first = sample.ids[0] < 128;
      const std::int64_t place = place_of(sample, in_first ? first : second);
      EXPECT_GE(place, 0);
      all.push_back((in_first ? 0 : 100) + place / length);
    }
    return all;
  };
  EXPECT_EQ(starts(0).size(), 150u) << "all of them";
  EXPECT_EQ(starts(1000).size(), 150u);
  const auto some = starts(15);
  ASSERT_EQ(some.size(), 15u);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(some[i], static_cast<std::int64_t>(10 * i));
  EXPECT_EQ(ValidationSet({Bytes(5)}, length, 0).size(), 0) << "too short for one";
  EXPECT_EQ(ValidationSet({}, length, 3).size(), 0);
}

}  // namespace
}  // namespace kintsugi
