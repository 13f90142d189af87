#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "data/sampling/sample_order.h"
#include "model/model_test_util.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Weights = std::vector<std::uint64_t>;

std::vector<BlendSource> sources_of(const std::vector<double>& weights, std::int64_t epoch = 1000,
                                    double max_epochs = 0) {
  std::vector<BlendSource> sources;
  for (const double weight : weights) sources.push_back({weight, epoch, max_epochs});
  return sources;
}

Blend blend_of(const std::vector<double>& weights) {
  return Blend(blend_weights(sources_of(weights), 1, 1));
}

// Counts each source among the first `samples` and checks the index within the source.
std::vector<std::int64_t> counts_of(const Blend& blend, std::size_t sources, std::int64_t samples) {
  std::vector<std::int64_t> counts(sources, 0);
  for (std::int64_t k = 0; k < samples; ++k) {
    const auto [source, index] = blend(k);
    EXPECT_LT(source, sources);
    EXPECT_EQ(index, counts[source]) << "sample " << k;
    counts[source] += 1;
  }
  return counts;
}

TEST(BlendTest, FourLanguagesHitTheirWeights) {
  constexpr std::int64_t samples = 100'000;
  for (const std::vector<double>& weights : std::vector<std::vector<double>>{
           {0.6, 0.25, 0.1, 0.05}, {0.997, 0.001, 0.001, 0.001}, {0.001, 0.2, 0.7, 0.099}}) {
    const auto counts = counts_of(blend_of(weights), 4, samples);
    for (std::size_t i = 0; i < 4; ++i) {
      const double fraction = static_cast<double>(counts[i]) / samples;
      EXPECT_LE(std::abs(fraction / weights[i] - 1), 0.001) << "source " << i;
    }
  }
}

TEST(BlendTest, NoSourceDeviatesFromItsProportion) {
  std::mt19937 random(7);
  for (const std::size_t sources : {1, 2, 3, 5, 8, 24}) {
    std::vector<double> weights(sources);
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(random() % 1000 / 150.0);
    const Blend blend = blend_of(weights);
    std::vector<double> counts(sources, 0);
    // Half a sample for each level of the recursion.
    const double limit = 0.5 * std::ceil(std::log2(static_cast<double>(sources))) + 1e-6;
    for (std::int64_t k = 0; k < 20'000; ++k) {
      counts[blend(k).source] += 1;
      for (std::size_t i = 0; i < sources; ++i)
        ASSERT_NEAR(counts[i], weights[i] / total * static_cast<double>(k + 1), limit)
            << k << " of " << sources << " sources";
    }
  }
}

TEST(BlendTest, AnyPositionIsReachedAtOnce) {
  const std::vector<double> weights = {0.5, 0.3, 0.15, 0.05};
  const Blend blend = blend_of(weights);
  for (const std::int64_t k : {1'000'000'007ll, 987'654'321'012'345ll, (1ll << 61) + 5}) {
    std::int64_t next[4] = {-1, -1, -1, -1};
    for (std::int64_t i = 0; i < 1000; ++i) {
      const auto [source, index] = blend(k + i);
      if (next[source] >= 0) {
        EXPECT_EQ(index, next[source]);
      }
      next[source] = index + 1;
      EXPECT_NEAR(static_cast<double>(index) / static_cast<double>(k + i), weights[source], 1e-8);
    }
  }
}

TEST(BlendTest, OnlyProportionsCount) {
  const Blend a = blend_of({1, 2, 5}), b = blend_of({0.125, 0.25, 0.625});
  for (std::int64_t k = 0; k < 1000; ++k) EXPECT_EQ(a(k).source, b(k).source);
}

TEST(BlendWeights, DoNotDependOnTheRunWhileNoLimitIsReached) {
  const auto sources = sources_of({3, 1}, 100, 4);
  EXPECT_EQ(blend_weights(sources, 10, 8), blend_weights(sources, 530, 8));
  EXPECT_NE(blend_weights(sources, 10, 8), blend_weights(sources, 533, 8));
}

// 1000 samples; the first source would give 600 but is limited to 100, the second would then give
// 562 but is limited to 400.
TEST(BlendWeights, TheExcessIsSpreadInProportion) {
  auto sources = sources_of({0.6, 0.25, 0.1, 0.05});
  sources[0] = {0.6, 50, 2};
  sources[1] = {0.25, 160, 2.5};
  const Weights weights = blend_weights(sources, 1000, 8);
  EXPECT_EQ(weights, (Weights{100, 400, 333, 167}));
  EXPECT_EQ(counts_of(Blend(weights), 4, 1000), (std::vector<std::int64_t>{100, 400, 333, 167}));
}

TEST(BlendWeights, ALimitBelowOneSampleLeavesASourceOut) {
  auto sources = sources_of({1, 1, 2});
  sources[0].max_epochs = 0.0005;  // of 1000 samples
  EXPECT_EQ(blend_weights(sources, 300, 8), (Weights{0, 100, 200}));
}

TEST(BlendWeights, NoLimitIsEverPassed) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    std::vector<BlendSource> sources;
    std::int64_t most = 0;
    for (std::size_t i = 0; i < 1 + static_cast<std::size_t>(round % 6); ++i) {
      const double epochs = 1 + random() % 3;
      sources.push_back(
          {0.1 + random() % 100, static_cast<std::int64_t>(1 + random() % 200), epochs});
      most += sources.back().epoch * static_cast<std::int64_t>(epochs);
    }
    const std::int64_t samples = most - static_cast<std::int64_t>(random() % (most / 2 + 1));
    const auto counts =
        counts_of(Blend(blend_weights(sources, samples, 4)), sources.size(), samples);
    const auto at_limit = [&](std::size_t i) {
      return counts[i] >= sources[i].epoch * static_cast<std::int64_t>(sources[i].max_epochs) - 1;
    };
    for (std::size_t i = 0; i < sources.size(); ++i) {
      EXPECT_LE(counts[i], sources[i].epoch * static_cast<std::int64_t>(sources[i].max_epochs));
      for (std::size_t j = 0; j < i; ++j) {
        if (at_limit(i) || at_limit(j)) continue;
        EXPECT_NEAR(static_cast<double>(counts[i]) / sources[i].weight,
                    static_cast<double>(counts[j]) / sources[j].weight,
                    2 / std::min(sources[i].weight, sources[j].weight));
      }
    }
  }
}

TEST(BlendWeights, TooLittleDataIsSaidInTokens) {
  const auto sources = sources_of({1, 1}, 100, 2);
  EXPECT_NO_THROW(blend_weights(sources, 400, 50));
  EXPECT_THAT(user_error_of([&] { blend_weights(sources, 401, 50); }),
              AllOf(HasSubstr("20.05 k tokens"), HasSubstr("401 samples of 50"),
                    HasSubstr("10 k in an epoch"), HasSubstr("20 k within max_epochs")));
}

// 720^100 overflows a double; the weights once were silently equal then.
TEST(TemperatureWeights, SmallTemperaturesDoNotOverflow) {
  const auto ratio = [](const std::vector<double>& weights) { return weights[0] / weights[1]; };
  EXPECT_NEAR(ratio(temperature_weights({14400, 1800}, 3)), 2, 1e-12);
  EXPECT_NEAR(ratio(temperature_weights({14400, 1800}, 0.01)) / 0x1p300, 1, 1e-9) << "8^100";
  EXPECT_EQ(temperature_weights({14400, 1800}, 1e-9), (std::vector<double>{1, 0}));
}

}  // namespace
}  // namespace kintsugi
