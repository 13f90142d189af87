// The loss of preference pairs: sums over sequences, weights of tokens, totals.
#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

class PreferenceTest : public OperationTest {};
KINTSUGI_ON_EACH_BACKEND(PreferenceTest, {DType::F32, DType::F64});

TEST_P(PreferenceTest, RangeSums) {
  const Values x = activations(2000);
  const Ids ranges = {0, 3, 3, 3, 3, 1999, 1999, 2000, -1, -1, 5, 6, 700, 1300};
  Values expected, sizes;
  for (std::size_t i = 0; i < ranges.size(); i += 2) {
    expected.push_back(0);
    sizes.push_back(1e-30);
    for (std::int32_t at = std::max(ranges[i], 0); at < ranges[i + 1]; ++at) {
      expected.back() += x[static_cast<std::size_t>(at)];
      sizes.back() += std::abs(x[static_cast<std::size_t>(at)]);
    }
  }
  const Tensor sums = out(type(), {7});
  backend().range_sums(sums, in(x, type(), {2000}), in(ranges, {7, 2}));
  expect_close("sums", read(sums), expected, type(), {4, type(), sizes});
}

// By the formulas as they are written in the literature; the margins are moderate.
TEST_P(PreferenceTest, LossAndWeights) {
  const double beta = 0.3;
  for (const double smoothing : {0.0, 0.1}) {
    SCOPED_TRACE(smoothing);
    // Four pairs, of which the third is unused and the last has one sequence on another rank.
    const Ids ranges = {2, 5, 5, 9, 12, 13, 10, 12, -1, -1, -1, -1, 13, 13, 15, 20};
    const Values sums = rounded({10, 14, 8.5, 7, 1, 2, 12, 30}, type()),
                 reference = rounded({-11, -13.5, -8, -9, 3, 4, -15, -28.5}, type());
    Values weights(23, 0.0), totals = {100, 200, 300, 400};
    for (const std::size_t pair : {0, 1, 3}) {
      const std::size_t c = 2 * pair, r = c + 1;
      const double chosen = beta * (-sums[c] - reference[c]),
                   rejected = beta * (-sums[r] - reference[r]), z = chosen - rejected;
      const double p = 1 / (1 + std::exp(-z));
      totals[0] += -(1 - smoothing) * std::log(p) - smoothing * std::log(1 - p);
      totals[1] += chosen;
      totals[2] += rejected;
      totals[3] += z > 0 ? 1 : 0;
      const double slope = (1 - smoothing) * (1 - p) - smoothing * p;  // - d loss / d z
      for (std::int32_t at = ranges[2 * c]; at < ranges[2 * c + 1]; ++at)
        weights[static_cast<std::size_t>(at)] = beta * slope;
      for (std::int32_t at = ranges[2 * r]; at < ranges[2 * r + 1]; ++at)
        weights[static_cast<std::size_t>(at)] = -beta * slope;
    }
    const Tensor weight = out(type(), {23}), total = inout({100, 200, 300, 400}, type(), {4});
    backend().preference_loss(weight, total, in(sums, type(), {8}), in(reference, type(), {8}),
                              in(ranges, {8, 2}), {.beta = beta, .label_smoothing = smoothing});
    expect_close("weights", read(weight), weights, type(), {8, type(), {1.0}});
    expect_close("totals", read(total), totals, type(), {8, type(), {400.0}});
    finish();
  }
}

// Margins of a thousand: no overflow; the loss is the margin or 0, the weight beta or 0.
TEST_P(PreferenceTest, LargeMargins) {
  const Tensor weight = out(type(), {4}), total = inout({0, 0, 0, 0}, type(), {4});
  backend().preference_loss(weight, total, in({1000, 0, 0, 1000}, type(), {4}),
                            in({0, 0, 0, 0}, type(), {4}), in(Ids{0, 1, 1, 2, 2, 3, 3, 4}, {4, 2}),
                            {.beta = 1.0});
  EXPECT_EQ(read(weight), (Values{1, -1, 0, 0}));
  EXPECT_EQ(read(total), (Values{1000, -1000, -1000, 1}));
}

// d loss / d sums by finite differences is the weight.
class PreferenceGradientTest : public PreferenceTest {};
KINTSUGI_ON_EACH_BACKEND(PreferenceGradientTest, {DType::F64});

TEST_P(PreferenceGradientTest, MatchesTheLoss) {
  const Values sums = {10, 14, 8.5, 7}, direction = {0.3, -1, 0.7, 0.2};
  const Tensor reference = in({-11, -13.5, -8, -9}, type(), {4}),
               ranges = in(Ids{0, 1, 1, 2, 2, 3, 3, 4}, {4, 2}), weight = out(type(), {4}),
               total = inout({0, 0, 0, 0}, type(), {4}), sum = inout(sums, type(), {4});
  const PreferenceOptions options{.beta = 0.4, .label_smoothing = 0.05};
  backend().preference_loss(weight, total, sum, reference, ranges, options);
  const double found = dot(read(weight), direction);
  const auto loss = [&](const Values& moved) {
    write(sum, moved);
    write(total, {0, 0, 0, 0});
    backend().preference_loss(weight, total, sum, reference, ranges, options);
    return Values{read(total)[0]};
  };
  EXPECT_NEAR(slope_along(loss, sums, direction, {1.0}), found, 1e-10);
}

}  // namespace
}  // namespace kintsugi
