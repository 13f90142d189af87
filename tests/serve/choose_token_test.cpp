#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "serve/sampling.h"
#include "support/chi_square.h"

namespace kintsugi {
namespace {

const std::vector<double> kLogits = {0.3f, 2.0f, -1.0f, 1.2f, 0.0f, 1.9f, -0.4f, 0.8f, -3.0f, 1.0f};

// The distribution of SamplingOptions, computed from its definition.
std::vector<double> distribution(const std::vector<double>& logits,
                                 const SamplingOptions& options) {
  std::vector<double> p;
  for (const double logit : logits)
    p.push_back(std::exp(static_cast<double>(logit) / options.temperature));
  const auto normalise = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= total;
  };
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  if (options.top_k > 0)
    for (std::size_t i = static_cast<std::size_t>(options.top_k); i < order.size(); ++i)
      p[order[i]] = 0;
  normalise();
  double sum = 0;  // the fewest tokens with a total probability of at least top_p
  for (const std::size_t token : order) {
    if (sum >= options.top_p) p[token] = 0;
    sum += p[token];
  }
  const double least = options.min_p * *std::max_element(p.begin(), p.end());
  for (double& value : p)
    if (value < least) value = 0;
  normalise();
  return p;
}

std::vector<double> draws(const std::vector<double>& logits, const SamplingOptions& options,
                          std::uint64_t count) {
  std::vector<double> counts(logits.size(), 0.0);
  for (std::uint64_t position = 0; position < count; ++position)
    counts[static_cast<std::size_t>(choose_token(logits, options, position))] += 1;
  return counts;
}

TEST(ChooseToken, TemperatureZeroTakesTheMostLikely) {
  for (std::uint64_t position = 0; position < 50; ++position)
    for (const std::uint64_t seed : {0ull, 7ull})
      EXPECT_EQ(choose_token(kLogits, {.temperature = 0, .seed = seed}, position), 1);
  const std::vector<double> tie = {0.0f, 3.0f, 3.0f};
  EXPECT_EQ(choose_token(tie, {.temperature = 0}, 0), 1) << "the first of equals";
  const std::vector<double> one = {-5.0f};
  EXPECT_EQ(choose_token(one, {.temperature = 0}, 0), 0);
  EXPECT_EQ(choose_token(one, {.temperature = 1}, 0), 0);
}

TEST(ChooseToken, NarrowOptionsTakeTheMostLikely) {
  for (std::uint64_t position = 0; position < 500; ++position) {
    EXPECT_EQ(choose_token(kLogits, {.temperature = 2, .top_k = 1}, position), 1);
    EXPECT_EQ(choose_token(kLogits, {.temperature = 2, .top_p = 0.01}, position), 1);
    EXPECT_EQ(choose_token(kLogits, {.temperature = 2, .top_p = 0.0}, position), 1);
    EXPECT_EQ(choose_token(kLogits, {.temperature = 2, .min_p = 1.0}, position), 1);
    EXPECT_EQ(choose_token(kLogits, {.temperature = 1e-4}, position), 1);
  }
}

TEST(ChooseToken, DrawsFollowTheDistribution) {
  const SamplingOptions cases[] = {
      {.temperature = 1.0},
      {.temperature = 0.7, .seed = 5},
      {.temperature = 3.0, .seed = 6},
      {.temperature = 1.0, .top_k = 4},
      {.temperature = 1.0, .top_k = 100},  // more than the vocabulary
      {.temperature = 1.0, .top_p = 0.8},
      {.temperature = 1.5, .top_k = 6, .top_p = 0.75, .seed = 9},
      {.temperature = 1.0, .min_p = 0.3},  // e^(0.8 - 2.0) = 0.301: five tokens
      {.temperature = 2.0, .min_p = 0.5, .seed = 4},
      {.temperature = 1.5, .top_k = 7, .top_p = 0.9, .min_p = 0.4, .seed = 8},
  };
  for (const SamplingOptions& options : cases) {
    const std::vector<double> expected = distribution(kLogits, options),
                              counts = draws(kLogits, options, 40000);
    std::vector<double> p, seen;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == 0) {
        EXPECT_EQ(counts[i], 0) << "token " << i << " was cut off";
        continue;
      }
      p.push_back(expected[i]);
      seen.push_back(counts[i]);
    }
    EXPECT_LT(chi_square_deviation(seen, p), 5) << options.temperature << " " << options.top_k
                                                << " " << options.top_p << " " << options.min_p;
  }
}

// Many seeds at one position, instead of many positions with one seed.
TEST(ChooseToken, SeedsFollowTheDistribution) {
  std::vector<double> counts(kLogits.size(), 0.0);
  for (std::uint64_t seed = 0; seed < 40000; ++seed)
    counts[static_cast<std::size_t>(choose_token(kLogits, {.seed = seed}, 17))] += 1;
  EXPECT_LT(chi_square_deviation(counts, distribution(kLogits, {})), 5);
}

TEST(ChooseToken, IsAFunctionOfItsArguments) {
  int by_seed = 0, by_position = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::int32_t token = choose_token(kLogits, {.seed = i}, i);
    EXPECT_EQ(choose_token(kLogits, {.seed = i}, i), token);
    by_seed += choose_token(kLogits, {.seed = i + 1}, i) != token;
    by_position += choose_token(kLogits, {.seed = i}, i + 1) != token;
  }
  EXPECT_GT(by_seed, 100);
  EXPECT_GT(by_position, 100);
}

// Adding a constant to all logits does not change the probabilities; large logits must not
// overflow.
TEST(ChooseToken, LargeLogitsAreHarmless) {
  std::vector<double> shifted = kLogits;
  for (double& logit : shifted) logit = logit * 1024 + 80000;
  std::vector<double> plain = kLogits;
  for (double& logit : plain) logit = (logit * 1024 + 80000) - 80000;
  for (std::uint64_t position = 0; position < 300; ++position)
    EXPECT_EQ(choose_token(shifted, {.temperature = 700}, position),
              choose_token(plain, {.temperature = 700}, position));
}

// Nothing can be sampled from logits without an order.
TEST(ChooseToken, LogitsThatAreNoNumbersAreAFailure) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  infinite = std::numeric_limits<float>::infinity();
  for (const double temperature : {0.0, 1.0})
    for (const std::int64_t top_k : {0, 3}) {
      const SamplingOptions options{.temperature = temperature, .top_k = top_k};
      for (std::size_t at = 0; at < kLogits.size(); ++at) {
        std::vector<double> logits = kLogits;
        logits[at] = nan;
        EXPECT_THROW(choose_token(logits, options, 1), Failure) << at;
        logits[at] = infinite;
        EXPECT_THROW(choose_token(logits, options, 1), Failure) << at;
        logits[at] = -infinite;  // never sampled, but other tokens are
        EXPECT_NE(choose_token(logits, options, 1), static_cast<std::int32_t>(at));
      }
      EXPECT_THROW(choose_token(std::vector<double>(300, nan), options, 1), Failure);
      EXPECT_THROW(choose_token(std::vector<double>(300, -infinite), options, 1), Failure);
    }
}

// Positive logits of seen tokens are divided, negative ones multiplied, each once.
TEST(ChooseToken, SeenTokensArePenalized) {
  const std::vector<std::int32_t> seen = {1, 8, 1, 5, 1};
  for (const double penalty : {0.5, 1.3, 2.0}) {
    std::vector<double> expected = kLogits;
    for (const std::size_t token : {1u, 5u, 8u})
      expected[token] = kLogits[token] < 0 ? kLogits[token] * penalty : kLogits[token] / penalty;
    const SamplingOptions options{.temperature = 1.1, .repetition_penalty = penalty, .seed = 2};
    std::vector<double> counts(kLogits.size(), 0.0);
    for (std::uint64_t position = 0; position < 40000; ++position)
      counts[static_cast<std::size_t>(choose_token(kLogits, options, position, seen))] += 1;
    EXPECT_LT(chi_square_deviation(counts, distribution(expected, {.temperature = 1.1})), 5)
        << penalty;
  }
  // Greedy: 2.0 / 2 and 1.9 / 2 are below 1.2.
  EXPECT_EQ(choose_token(kLogits, {.temperature = 0, .repetition_penalty = 2}, 0, seen), 3);
  EXPECT_EQ(choose_token(kLogits, {.temperature = 0, .repetition_penalty = 1}, 0, seen), 1);
}

// The k most likely tokens are enough for top-k, and one for greedy choice.
TEST(ChooseLikelyToken, IsTheChoiceAmongAll) {
  std::vector<LikelyToken> likely;
  for (const std::int32_t id : {1, 5, 3, 9, 0})
    likely.push_back({id, kLogits[static_cast<std::size_t>(id)]});
  std::sort(likely.begin(), likely.end(), [](const LikelyToken& a, const LikelyToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  for (std::uint64_t position = 0; position < 50; ++position)
    for (const SamplingOptions& options :
         {SamplingOptions{.temperature = 2, .top_k = 3}, SamplingOptions{.top_k = 4, .top_p = 0.7},
          SamplingOptions{.temperature = 0}, SamplingOptions{.top_k = 4, .min_p = 0.4}})
      EXPECT_EQ(choose_token(likely, options, position), choose_token(kLogits, options, position));
}

}  // namespace
}  // namespace kintsugi
