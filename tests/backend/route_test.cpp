// Routers: the choice of experts, their weights, losses and order.
#include <complex>
#include <numeric>

#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

struct RouteSize {
  std::int64_t tokens, experts, k;
};

std::string describe(const RouteSize& s, const RouteOptions& o, bool bias) {
  return fmt::format("tokens {} experts {} k {} {}{}{} groups {} of {}", s.tokens, s.experts, s.k,
                     o.scores == RouteScores::Softmax ? "softmax" : "sigmoid",
                     o.normalize ? " normalized" : "", bias ? " bias" : "", o.top_groups, o.groups);
}

// Softmax and sigmoid, normalized and not, with a scale.
std::vector<RouteOptions> all_options(std::int64_t groups = 1, std::int64_t top_groups = 1) {
  std::vector<RouteOptions> all;
  for (const RouteScores scores : {RouteScores::Softmax, RouteScores::Sigmoid})
    for (const bool normalize : {true, false})
      all.push_back({scores, groups, top_groups, normalize, normalize ? 2.5 : 1.0});
  return all;
}

// ---- one token; complex numbers give derivatives
template <class V>
std::vector<V> scores_of(const std::vector<V>& logits, RouteScores kind) {
  std::vector<V> scores;
  V sum = 0;
  for (const V& logit : logits) sum += std::exp(logit);
  for (const V& logit : logits)
    scores.push_back(kind == RouteScores::Softmax ? std::exp(logit) / sum
                                                  : V(1) / (V(1) + std::exp(-logit)));
  return scores;
}

template <class V>
std::vector<V> weights_of(const std::vector<V>& scores, const Ids& ids,
                          const RouteOptions& options) {
  std::vector<V> weights;
  V sum = 0;
  for (const std::int32_t id : ids) sum += scores[static_cast<std::size_t>(id)];
  for (const std::int32_t id : ids)
    weights.push_back(options.scale * scores[static_cast<std::size_t>(id)] /
                      (options.normalize ? sum : V(1)));
  return weights;
}

template <class V>
V log_z_of(const std::vector<V>& logits) {
  V sum = 0;
  for (const V& logit : logits) sum += std::exp(logit);
  return std::log(sum);
}

template <class V>
std::vector<V> probabilities_of(std::vector<V> scores) {
  const V total = std::accumulate(scores.begin(), scores.end(), V(0));
  for (V& score : scores) score /= total;
  return scores;
}

// The n largest, the largest first and of equals the first.
Ids largest_of(const Values& values, std::int64_t n) {
  Ids order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(n));
  return order;
}

Ids choice_of(Values scores, const Values& bias, std::int64_t k, const RouteOptions& options) {
  for (std::size_t e = 0; e < bias.size(); ++e) scores[e] += bias[e];
  const std::int64_t size = static_cast<std::int64_t>(scores.size()) / options.groups;
  Values groups;
  for (std::int64_t g = 0; g < options.groups; ++g) {
    const Values members(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    double sum = 0;
    for (const std::int32_t i : largest_of(members, std::min<std::int64_t>(2, size)))
      sum += members[static_cast<std::size_t>(i)];
    groups.push_back(sum);
  }
  const Ids best = largest_of(groups, options.top_groups);
  for (std::int64_t g = 0; g < options.groups; ++g)
    if (std::find(best.begin(), best.end(), g) == best.end())
      std::fill_n(scores.begin() + g * size, size, -INFINITY);
  return largest_of(scores, k);
}

std::vector<Values> rows_of(const Values& x, std::int64_t width) {
  std::vector<Values> rows;
  for (auto at = x.begin(); at != x.end(); at += width) rows.emplace_back(at, at + width);
  return rows;
}

template <class V>
void append(std::vector<V>& to, const std::vector<V>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

class RouteTest : public OperationTest {
 protected:
  struct Routed {
    Ids ids;
    Values weights;
  };
  static Routed reference(const Values& logits, const Values& bias, const RouteSize& s,
                          const RouteOptions& options) {
    Routed r;
    for (const Values& row : rows_of(logits, s.experts)) {
      const Values scores = scores_of(row, options.scores);
      const Ids ids = choice_of(scores, bias, s.k, options);
      append(r.ids, ids);
      append(r.weights, weights_of(scores, ids, options));
    }
    return r;
  }
  Routed route(const Values& logits, const Values& bias, const RouteSize& s,
               const RouteOptions& options) {
    const Tensor ids = out(DType::I32, {s.tokens, s.k}),
                 weights = out(accumulator(), {s.tokens, s.k});
    backend().route(ids, weights, in(logits, accumulator(), {s.tokens, s.experts}),
                    bias.empty() ? Tensor() : in(bias, accumulator(), {s.experts}), options);
    Routed r = {read_ids(ids), read(weights)};
    finish();
    return r;
  }
  Ids read_ids(const Tensor& x) {
    Ids ids(static_cast<std::size_t>(x.elements()));
    backend().download(ids.data(), x);
    return ids;
  }
  void check(const RouteSize& s, const RouteOptions& options, bool biased) {
    SCOPED_TRACE(describe(s, options, biased));
    const Values logits = rounded(normal(s.tokens * s.experts, 2.0), accumulator());
    const Values bias = biased ? rounded(normal(s.experts, 0.1), accumulator()) : Values();
    const Routed expected = reference(logits, bias, s, options),
                 found = route(logits, bias, s, options);
    EXPECT_EQ(found.ids, expected.ids);
    expect_close("weights", found.weights, expected.weights, accumulator(), {32, accumulator()});
  }
  // Valid and different ids for each token.
  static void expect_valid(const Ids& ids, const RouteSize& s) {
    for (std::int64_t token = 0; token < s.tokens; ++token) {
      Ids of_token(ids.begin() + token * s.k, ids.begin() + (token + 1) * s.k);
      std::sort(of_token.begin(), of_token.end());
      EXPECT_GE(of_token.front(), 0);
      EXPECT_LT(of_token.back(), s.experts);
      EXPECT_EQ(std::adjacent_find(of_token.begin(), of_token.end()), of_token.end())
          << "token " << token;
    }
  }
};
KINTSUGI_ON_EACH_BACKEND(RouteTest, {DType::F64, DType::F32});

TEST_P(RouteTest, ChoosesTheLargestScores) {
  constexpr RouteSize kSizes[] = {{1, 1, 1},   {3, 2, 1},    {17, 8, 2}, {33, 40, 8},
                                  {5, 33, 33}, {65, 256, 8}, {4, 300, 6}};
  for (const RouteSize& s : kSizes)
    for (const RouteOptions& options : all_options())
      for (const bool bias : {false, true}) check(s, options, bias);
}

TEST_P(RouteTest, ChoosesWithinTheBestGroups) {
  for (const bool bias : {false, true}) {
    for (const RouteOptions& options : all_options(4, 2)) check({19, 16, 3}, options, bias);
    for (const RouteOptions& options : all_options(8, 4)) check({9, 256, 8}, options, bias);
    for (const RouteOptions& options : all_options(8, 3)) check({9, 8, 3}, options, bias);
    for (const RouteOptions& options : all_options(40, 1)) check({5, 80, 2}, options, bias);
    for (const RouteOptions& options : all_options(3, 3)) check({5, 12, 12}, options, bias);
  }
}

TEST_P(RouteTest, TheFirstOfEqualsIsChosen) {
  for (const RouteOptions& options : all_options()) {
    EXPECT_EQ(route(Values(80, 0.5), {}, {2, 40, 4}, options).ids, (Ids{0, 1, 2, 3, 0, 1, 2, 3}));
    Values logits(70, -1.0);
    for (const std::size_t e : {3, 35, 67}) logits[e] = 1.0;
    for (const std::size_t e : {34, 66}) logits[e] = 2.0;
    EXPECT_EQ(route(logits, {}, {1, 70, 7}, options).ids, (Ids{34, 66, 3, 35, 67, 0, 1}));
  }
  for (const RouteOptions& options : all_options(4, 2))
    EXPECT_EQ(route(Values(64, 0.5), {}, {1, 64, 18}, options).ids,
              (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
}

// With the weights of the scores of these experts.
TEST_P(RouteTest, EvenChoicesIgnoreTheScores) {
  const RouteSize s = {5, 4, 3};
  const Values logits = rounded(normal(s.tokens * s.experts), accumulator());
  for (RouteOptions options : all_options()) {
    options.even = true;
    const Routed found = route(logits, {}, s, options);
    EXPECT_EQ(found.ids, (Ids{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2}));
    const std::vector<Values> rows = rows_of(logits, s.experts);
    for (std::size_t token = 0; token < rows.size(); ++token)
      expect_close("weights", Values(&found.weights[token * 3], &found.weights[token * 3] + 3),
                   weights_of(scores_of(rows[token], options.scores),
                              {&found.ids[token * 3], &found.ids[token * 3] + 3}, options),
                   accumulator(), {32, accumulator()});
  }
}

// A token that the bias leads to other experts weighs them by their scores.
TEST_P(RouteTest, ABiasChangesOnlyTheChoice) {
  const RouteSize s = {6, 12, 3};
  const Values logits = rounded(normal(s.tokens * s.experts), accumulator());
  Values bias(12, 0.0);
  bias[7] = 10, bias[2] = 20;
  for (const RouteOptions& options : all_options()) {
    const Routed found = route(logits, bias, s, options);
    const std::vector<Values> rows = rows_of(logits, s.experts);
    for (std::size_t token = 0; token < rows.size(); ++token) {
      const Ids ids(&found.ids[token * 3], &found.ids[token * 3] + 3);
      EXPECT_EQ(ids[0], 2);
      EXPECT_EQ(ids[1], 7);
      expect_close("weights", Values(&found.weights[token * 3], &found.weights[token * 3] + 3),
                   weights_of(scores_of(rows[token], options.scores), ids, options), accumulator(),
                   {32, accumulator()});
    }
  }
}

TEST_P(RouteTest, IdsAreValidWhateverTheLogitsAre) {
  const RouteSize s = {9, 40, 5};
  Values logits = normal(s.tokens * s.experts);
  const auto row = [&](std::int64_t token) { return logits.begin() + token * s.experts; };
  std::fill_n(row(0), 40, NAN);
  row(1)[7] = NAN;
  row(2)[0] = NAN;
  std::fill_n(row(3), 38, NAN);
  row(4)[39] = INFINITY;
  std::fill_n(row(5), 40, -INFINITY);
  std::fill_n(row(6), 40, INFINITY);
  row(7)[3] = INFINITY, row(7)[4] = NAN, row(7)[5] = -INFINITY;
  for (const std::int64_t groups : {1, 8})
    for (const RouteOptions& options : all_options(groups, std::min<std::int64_t>(groups, 2)))
      expect_valid(route(logits, {}, s, options).ids, s);
  Values bias(40, 0.0);
  bias[1] = NAN, bias[2] = INFINITY, bias[3] = -INFINITY;
  for (const RouteOptions& options : all_options())
    expect_valid(route(logits, bias, s, options).ids, s);
}

// Exponentials of such logits overflow in fp32, and in fp64 too.
TEST_P(RouteTest, FarFromZero) {
  const Values logits = {1e4, -1e4, 0, 1e4, -1e4, -2e4, -3e4, -1e5};
  for (const RouteOptions& options : all_options()) {
    const Routed found = route(logits, {}, {2, 4, 2}, options);
    EXPECT_EQ(found.ids[0], 0);
    EXPECT_EQ(found.ids[1], 3);
    EXPECT_EQ(found.ids[2], 0);
    EXPECT_EQ(found.ids[3], 1);
    const bool softmax = options.scores == RouteScores::Softmax;
    const double full = options.scale, half = softmax || options.normalize ? full / 2 : full;
    expect_close("weights", found.weights, {half, half, softmax ? full : 0, 0}, accumulator(),
                 {4, accumulator()});
  }
}

// ---- gradients
class RouteBackwardTest : public RouteTest {
 protected:
  struct Case {
    RouteSize size;
    RouteOptions options;
    std::int64_t sequences = 1;
    double z_loss = 0;
    Values logits, bias, dweights, balance;  // balance: none if empty
    Ids ids;
  };
  Case make(const RouteSize& s, const RouteOptions& options, std::int64_t sequences,
            double z_loss) {
    Case c = {.size = s,
              .options = options,
              .sequences = sequences,
              .z_loss = z_loss,
              .logits = rounded(normal(s.tokens * s.experts), accumulator()),
              .bias = rounded(normal(s.experts, 0.3), accumulator()),
              .dweights = rounded(normal(s.tokens * s.k), accumulator()),
              .balance = {},
              .ids = {}};
    if (sequences > 0) c.balance = rounded(normal(sequences * s.experts), accumulator());
    c.ids = reference(c.logits, c.bias, s, options).ids;
    return c;
  }
  // The losses of a token as a function of its logits, for the experts that it has chosen.
  template <class V>
  static V loss(const Case& c, std::size_t token, const std::vector<V>& logits) {
    const auto k = static_cast<std::size_t>(c.size.k),
               experts = static_cast<std::size_t>(c.size.experts);
    const std::vector<V> scores = scores_of(logits, c.options.scores);
    const Ids ids(&c.ids[token * k], &c.ids[token * k] + k);
    const std::vector<V> weights = weights_of(scores, ids, c.options);
    V sum = c.z_loss * log_z_of(logits) * log_z_of(logits);
    for (std::size_t slot = 0; slot < k; ++slot)
      sum += c.dweights[token * k + slot] * weights[slot];
    if (c.balance.empty()) return sum;
    const std::size_t sequence = token / static_cast<std::size_t>(c.size.tokens / c.sequences);
    const std::vector<V> probabilities = probabilities_of(scores);
    for (std::size_t e = 0; e < experts; ++e)
      sum += c.balance[sequence * experts + e] * probabilities[e];
    return sum;
  }
  // The imaginary part of the loss at a logit with a tiny imaginary part is the derivative.
  static Values gradient(const Case& c) {
    constexpr double kStep = 1e-100;
    Values result;
    const std::vector<Values> rows = rows_of(c.logits, c.size.experts);
    for (std::size_t token = 0; token < rows.size(); ++token)
      for (std::size_t e = 0; e < rows[token].size(); ++e) {
        std::vector<std::complex<double>> moved(rows[token].begin(), rows[token].end());
        moved[e] += std::complex<double>(0, kStep);
        result.push_back(loss(c, token, moved).imag() / kStep);
      }
    return result;
  }
  Tensor backward(const Case& c) {
    const Tensor dlogits = out(type(), {c.size.tokens, c.size.experts});
    RouteLosses losses = {.balance = {}, .z_loss = c.z_loss};
    if (!c.balance.empty())
      losses.balance = in(c.balance, accumulator(), {c.sequences, c.size.experts});
    backend().route_backward(dlogits, in(c.dweights, accumulator(), {c.size.tokens, c.size.k}),
                             in(c.ids, {c.size.tokens, c.size.k}),
                             in(c.logits, accumulator(), {c.size.tokens, c.size.experts}),
                             c.options, losses);
    return dlogits;
  }
};
KINTSUGI_ON_EACH_BACKEND(RouteBackwardTest);

TEST_P(RouteBackwardTest, IsTheSlopeOfTheLosses) {
  struct Losses {
    std::int64_t sequences;
    double z_loss;
  };
  constexpr RouteSize kSizes[] = {{1, 1, 1}, {6, 8, 2}, {12, 40, 5}, {6, 33, 33}};
  for (const RouteSize& s : kSizes)
    for (const RouteOptions& options : all_options())
      for (const Losses& losses : {Losses{0, 0}, Losses{1, 0}, Losses{0, 0.5}, Losses{3, 0.1}}) {
        if (losses.sequences > s.tokens) continue;
        SCOPED_TRACE(describe(s, options, true) +
                     fmt::format(" sequences {} z_loss {}", losses.sequences, losses.z_loss));
        const Case c = make(s, options, losses.sequences, losses.z_loss);
        expect_close("dlogits", read(backward(c)), gradient(c), type(),
                     {64, accumulator(), {largest(c.dweights) + largest(c.balance) + 1}});
        finish();
      }
}

class RouteGradientTest : public RouteBackwardTest {};
KINTSUGI_ON_EACH_BACKEND(RouteGradientTest, {DType::F64});

// Of what the operations themselves give: weights, probabilities and log^2 Z.
TEST_P(RouteGradientTest, MatchesDifferences) {
  for (const RouteOptions& options : all_options(2, 1)) {
    const RouteSize s = {6, 10, 3};
    const Case c = make(s, options, 2, 0.3);
    const Values gradient = read(backward(c)), direction = normal(s.tokens * s.experts);
    const Tensor logits = in(c.logits, type(), {s.tokens, s.experts});
    const Tensor ids = out(DType::I32, {s.tokens, s.k}), weights = out(type(), {s.tokens, s.k});
    const Tensor counts = out(type(), {2, s.experts}), probabilities = out(type(), {2, s.experts});
    const Tensor squared_log_z = out(type(), {1}), bias = in(c.bias, type(), {s.experts});
    const auto forward = [&](const Values& moved) {
      write(logits, moved);
      write(squared_log_z, {0.0});
      backend().route(ids, weights, logits, bias, options);
      EXPECT_EQ(read_ids(ids), c.ids);
      backend().route_statistics(counts, probabilities, squared_log_z, ids, logits, options);
      Values all = read(weights);
      append(all, read(probabilities));
      append(all, read(squared_log_z));
      return all;
    };
    Values cotangent = c.dweights;
    append(cotangent, c.balance);
    cotangent.push_back(c.z_loss);
    EXPECT_NEAR(slope_along(forward, c.logits, direction, cotangent, 1e-4),
                dot(gradient, direction), 1e-8);
    finish();
  }
}

// ---- statistics
TEST_P(RouteTest, StatisticsOfSequences) {
  struct Sequences {
    std::int64_t count, length, experts, k;
  };
  constexpr Sequences kCases[] = {{1, 1, 1, 1},   {1, 130, 8, 2},   {2, 5, 40, 5},
                                  {3, 70, 33, 4}, {2, 200, 300, 6}, {70, 1, 8, 2}};
  for (const Sequences& c : kCases)
    for (const RouteOptions& options : all_options()) {
      const RouteSize s = {c.count * c.length, c.experts, c.k};
      SCOPED_TRACE(describe(s, options, false) + fmt::format(" sequences {}", c.count));
      const Values logits = rounded(normal(s.tokens * s.experts), accumulator());
      const Ids ids = reference(logits, {}, s, options).ids;
      const auto width = static_cast<std::size_t>(c.count * c.experts);
      Values counts(width, 0.0), probabilities(width, 0.0);
      double squares = 3.0, size = 3.0;
      const std::vector<Values> rows = rows_of(logits, s.experts);
      for (std::size_t token = 0; token < rows.size(); ++token) {
        const std::size_t at =
            token / static_cast<std::size_t>(c.length) * static_cast<std::size_t>(c.experts);
        const Values p = probabilities_of(scores_of(rows[token], options.scores));
        for (std::size_t e = 0; e < p.size(); ++e) probabilities[at + e] += p[e];
        for (std::size_t slot = 0; slot < static_cast<std::size_t>(c.k); ++slot)
          counts[at +
                 static_cast<std::size_t>(ids[token * static_cast<std::size_t>(c.k) + slot])] += 1;
        const double log_z = log_z_of(rows[token]);
        squares += log_z * log_z;
        size += log_z * log_z + 2 * std::abs(log_z);
      }
      const Tensor counted = out(accumulator(), {c.count, c.experts}),
                   summed = out(accumulator(), {c.count, c.experts}),
                   again = out(accumulator(), {c.count, c.experts});
      const Tensor squared_log_z = inout({3.0}, accumulator(), {1});
      const Tensor from = in(logits, accumulator(), {s.tokens, s.experts}),
                   chosen = in(ids, {s.tokens, s.k});
      backend().route_statistics(counted, summed, squared_log_z, chosen, from, options);
      EXPECT_EQ(read(counted), counts);
      const double rounds = 32 + std::sqrt(static_cast<double>(s.tokens));
      expect_close("probabilities", read(summed), probabilities, accumulator(),
                   {rounds, accumulator()});
      expect_close("squared_log_z", read(squared_log_z), {squares}, accumulator(),
                   {rounds, accumulator(), {size}});
      backend().route_statistics(counted, again, {}, chosen, from, options);
      EXPECT_EQ(read(counted), counts);
      EXPECT_EQ(read(again), read(summed));
      finish();
    }
}

TEST_P(RouteTest, BalanceLoss) {
  for (const std::int64_t sequences : {1, 3, 40}) {
    const std::int64_t experts = 37;
    Values counts, products;
    for (const std::int32_t n : integers(sequences * experts, 0, 50)) counts.push_back(n);
    const Values probabilities =
        rounded(magnitudes(normal(sequences * experts, 10.0)), accumulator());
    const double scale = 0.01;
    Values gradient = counts;
    for (double& x : gradient) x *= scale;
    const Tensor loss = inout({5.0}, accumulator(), {1}),
                 slope = out(accumulator(), {sequences, experts}),
                 again = out(accumulator(), {sequences, experts});
    const Tensor n = in(counts, accumulator(), {sequences, experts}),
                 p = in(probabilities, accumulator(), {sequences, experts});
    backend().balance_loss(loss, slope, n, p, 0.25, scale);
    const double expected = 5.0 + 0.25 * dot(counts, probabilities);
    expect_close("loss", read(loss), {expected}, accumulator(), {64, accumulator()});
    expect_close("gradient", read(slope), gradient, accumulator(), {1, accumulator()});
    backend().balance_loss({}, again, n, p, 1.0, scale);
    EXPECT_EQ(read(again), read(slope));
    finish();
  }
}

// ---- the order of the choices
class OrderTest : public RouteTest {
 protected:
  // The rows of `count` experts from `first` on. `room`: rows that no choice needs.
  void check(const Ids& ids, std::int64_t k, std::int64_t first, std::int64_t count,
             std::int64_t room = 5) {
    SCOPED_TRACE(
        fmt::format("{} choices, k {}, experts {} to {}", ids.size(), k, first, first + count));
    Ids rows, offsets = {0}, positions(ids.size(), -1);
    for (std::int64_t e = first; e < first + count; ++e) {
      for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] == e) {
          positions[i] = static_cast<std::int32_t>(rows.size());
          rows.push_back(static_cast<std::int32_t>(i));
        }
      offsets.push_back(static_cast<std::int32_t>(rows.size()));
    }
    const std::int64_t tokens = static_cast<std::int64_t>(ids.size()) / k,
                       used = static_cast<std::int64_t>(rows.size());
    const Tensor order = buffer(DType::I32, {tokens * std::min(k, count) + room});
    allow(order.rows(0, used));
    const Tensor starts = out(DType::I32, {count + 1}), at = out(DType::I32, {tokens, k});
    backend().order_choices({.rows = order, .offsets = starts, .choices = k}, at,
                            in(ids, {tokens, k}), first);
    EXPECT_EQ(read_ids(starts), offsets);
    EXPECT_EQ(read_ids(at), positions);
    EXPECT_EQ(read_ids(order.rows(0, used)), rows);
    finish();
  }
  // k different experts of each token.
  Ids choices(std::int64_t tokens, std::int64_t experts, std::int64_t k) {
    Ids ids;
    for (std::int64_t token = 0; token < tokens; ++token)
      append(ids, largest_of(normal(experts), k));
    return ids;
  }
};
KINTSUGI_ON_EACH_BACKEND(OrderTest, {DType::F32});

TEST_P(OrderTest, ChoicesBeyondACapacityAreDropped) {
  struct Case {
    std::int64_t sequences, length, k, experts, capacity;
  };
  for (const Case& c : {Case{1, 5, 1, 1, 3}, Case{3, 40, 2, 4, 21}, Case{2, 65, 8, 40, 9},
                        Case{1, 300, 4, 100, 30}, Case{4, 7, 3, 12, 1}}) {
    const Ids ids = choices(c.sequences * c.length, c.experts, c.k);
    Ids expected = ids;
    double all = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t each = static_cast<std::size_t>(c.length * c.k);
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(i / each * each);
      if (std::count(begin, ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]) < c.capacity)
        continue;
      expected[i] = -1;
      ++all;
    }
    for (const bool counted : {true, false}) {
      const Tensor kept = out(DType::I32, {c.sequences * c.length, c.k}),
                   dropped = counted ? out(accumulator(), {1}) : Tensor();
      if (counted) write(dropped, {5.0});
      backend().limit_choices(kept, dropped, in(ids, {c.sequences * c.length, c.k}),
                              {.length = c.length, .experts = c.experts, .capacity = c.capacity});
      EXPECT_EQ(read_ids(kept), expected);
      if (counted) {
        EXPECT_EQ(read(dropped), Values{5.0 + all});
      }
      finish();
    }
  }
}

// Ranks hold `own` experts each; between theirs are those of other tensor ranks.
TEST_P(OrderTest, VisitsOfTokensToTheRanksOfTheirExperts) {
  struct Case {
    std::int64_t tokens, k, ranks;
    ExpertOwners owners;
  };
  for (const Case& c :
       {Case{1, 1, 2, {0, 1, 1}}, Case{300, 2, 4, {0, 2, 2}}, Case{65, 8, 3, {2, 2, 4}},
        Case{70, 3, 16, {1, 1, 2}}, Case{0, 2, 2, {0, 4, 4}}}) {
    const Ids ids = choices(c.tokens, c.owners.stride * c.ranks, c.k);
    Ids expected;
    for (std::int64_t token = 0; token < c.tokens; ++token)
      for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
        const std::int64_t first = c.owners.first + rank * c.owners.stride;
        bool visited = false;
        for (std::int64_t slot = 0; slot < c.k; ++slot) {
          const std::int32_t id = ids[static_cast<std::size_t>(token * c.k + slot)];
          visited = visited || (id >= first && id < first + c.owners.own);
        }
        expected.push_back(visited ? static_cast<std::int32_t>(rank) : -1);
      }
    const Tensor visits = out(DType::I32, {c.tokens, c.ranks});
    backend().find_visits(visits, in(ids, {c.tokens, c.k}), c.owners);
    EXPECT_EQ(read_ids(visits), expected);
    finish();
  }
}

TEST_P(OrderTest, AllExperts) {
  check(choices(1, 1, 1), 1, 0, 1);
  check(choices(2, 3, 2), 2, 0, 3);
  check(choices(300, 8, 2), 2, 0, 8);
  check(choices(65, 40, 8), 8, 0, 40);
  check(choices(40, 256, 8), 8, 0, 256, 0);
  check(choices(7, 12, 12), 12, 0, 12);
}

// More than one block of a GPU sorts these.
TEST_P(OrderTest, ManyChoices) {
  check(choices(3000, 4, 2), 2, 0, 4);
  check(choices(2500, 40, 2), 2, 3, 33);
}

TEST_P(OrderTest, ExpertsOfAnotherRank) {
  const Ids ids = choices(130, 12, 3);
  for (const std::int64_t first : {0, 4, 8}) check(ids, 3, first, 4);
  check(ids, 3, 11, 1);
  check(Ids(50, 2), 1, 4, 4);  // none is here
}

TEST_P(OrderTest, AllOnOneExpert) {
  check(Ids(2500, 5), 1, 0, 8);
  check(Ids(130, 7), 1, 0, 8);
  check(Ids(130, 0), 1, 0, 1);
}

}  // namespace
}  // namespace kintsugi
