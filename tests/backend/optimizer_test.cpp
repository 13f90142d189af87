// Sums, norms, clipping and AdamW.
#include "backend/operation_fixture.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

class ReductionTest : public OperationTest {
 protected:
  Values one(double value) { return rounded({value}, accumulator()); }
  double clip(double squared_norm, double limit, double unscale) {
    const Tensor scale = out(accumulator(), {1});
    backend().clip_scale(scale, in(Values{squared_norm}, accumulator(), {1}),
                         {.clip = limit, .unscale = unscale});
    return read(scale)[0];
  }
};
KINTSUGI_ON_EACH_BACKEND(ReductionTest);

TEST_P(ReductionTest, SumAndSquaredNormAddUp) {
  for (const std::int64_t count : {1, 2, 31, 1000, 65537, 300007}) {
    SCOPED_TRACE(count);
    const Values x = activations(count, 1.0, 0.1);
    long double exact = 2.5, exact_squares = 2.5;
    double size = 2.5;
    for (const long double value : x) {
      exact += value;
      exact_squares += value * value;
      size += static_cast<double>(std::abs(value));
    }
    const auto total = static_cast<double>(exact), squares = static_cast<double>(exact_squares);
    const double rounds = 8 + std::sqrt(static_cast<double>(count)) / 4;
    const Tensor from = in(x, type(), {count});
    const Tensor sum = inout({2.5}, accumulator(), {1}), norm = inout({2.5}, accumulator(), {1});
    backend().sum(sum, from);
    backend().squared_norm(norm, from);
    // The sum is made of partial sums: errors grow at most with the square root of the count.
    expect_close("sum", read(sum), {total}, accumulator(), {rounds, accumulator(), {size}});
    expect_close("norm", read(norm), {squares}, accumulator(), {rounds, accumulator()});
    const Values first = read(norm);
    backend().squared_norm(norm, from);
    expect_close("norm twice", read(norm), {2 * squares - 2.5}, accumulator(),
                 {rounds, accumulator()});
    write(norm, {2.5});
    backend().squared_norm(norm, from);
    EXPECT_EQ(read(norm), first) << "the order is fixed";
    finish();
  }
}

TEST_P(ReductionTest, NotFiniteGradientsAreSeen) {
  for (const double bad :
       {static_cast<double>(INFINITY), static_cast<double>(-INFINITY), static_cast<double>(NAN)}) {
    Values x = activations(70001);
    x[65999] = bad;
    const Tensor norm = inout({0.0}, accumulator(), {1}), scale = out(accumulator(), {1});
    backend().squared_norm(norm, in(x, type(), {70001}));
    backend().clip_scale(scale, norm, {.clip = 1.0, .unscale = 0.5});
    EXPECT_TRUE(std::isnan(read(scale)[0])) << bad;
    finish();
  }
}

TEST_P(ReductionTest, ClipScale) {
  const double tight = 4 * unit_roundoff(accumulator());
  EXPECT_NEAR(clip(16.0, 1.0, 1.0), 0.25, tight);
  EXPECT_EQ(clip(16.0, 5.0, 1.0), 1.0) << "below the limit";
  EXPECT_EQ(clip(16.0, 4.0, 1.0), 1.0) << "at the limit";
  EXPECT_EQ(clip(0.0, 1.0, 0.5), 0.5) << "no gradient";
  EXPECT_EQ(clip(1e20, 0.0, 0.125), 0.125) << "no clipping";
  // The true norm is unscale * 4096 = 8: clipping to 2 leaves a quarter of it.
  EXPECT_NEAR(clip(4096.0 * 4096.0, 2.0, 1.0 / 512), 0.25 / 512, tight);
  EXPECT_EQ(clip(4096.0 * 4096.0, 9.0, 1.0 / 512), 1.0 / 512);
  for (const double limit : {0.0, 1.0}) {
    EXPECT_TRUE(std::isnan(clip(INFINITY, limit, 1.0)));
    EXPECT_TRUE(std::isnan(clip(NAN, limit, 1.0)));
  }
}

TEST_P(ReductionTest, LimitsOfNormAndLoss) {
  const auto skipped = [&](double norm_limit, double loss, double loss_limit) {
    const Tensor scale = out(accumulator(), {1});
    backend().clip_scale(scale, in(Values{64.0 * 64.0}, accumulator(), {1}),
                         {.clip = 1.0,
                          .unscale = 0.125,  // the norm is 8
                          .norm_limit = norm_limit,
                          .loss_limit = loss_limit,
                          .loss = in(Values{loss}, accumulator(), {1})});
    const double value = read(scale)[0];
    if (!std::isnan(value)) {
      EXPECT_NEAR(value, 0.125 / 8, unit_roundoff(accumulator()));
    }
    return std::isnan(value);
  };
  EXPECT_FALSE(skipped(INFINITY, 1e30, INFINITY));
  EXPECT_FALSE(skipped(8.0, 2.0, 2.0)) << "at the limits";
  EXPECT_TRUE(skipped(7.99, 2.0, 2.0));
  EXPECT_TRUE(skipped(8.0, 2.0, 1.99));
  EXPECT_FALSE(skipped(8.0, NAN, 1.99)) << "a loss that is not finite is no outlier";
}

// AdamW as in its paper, in double.
struct PlainAdamW {
  Values weight, first, second;
  void step(const Values& gradient, double scale, const AdamWOptions& o) {
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double g = gradient[i] * scale, t = static_cast<double>(o.step);
      first[i] = o.beta1 * first[i] + (1 - o.beta1) * g;
      second[i] = o.beta2 * second[i] + (1 - o.beta2) * g * g;
      const double m = first[i] / (1 - std::pow(o.beta1, t)),
                   v = second[i] / (1 - std::pow(o.beta2, t));
      weight[i] -= o.lr * (m / (std::sqrt(v) + o.eps) + o.weight_decay * weight[i]);
    }
  }
};

class AdamWTest : public OperationTest {
 protected:
  struct State {
    Tensor weight, master, first, second;
  };
  // The weight is its own master if it has accumulator precision.
  State state(const Values& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    const Values zeros(values.size(), 0.0);
    State s;
    s.master = inout(values, accumulator(), {count});
    s.weight = narrow() ? inout(values, type(), {count}) : s.master;
    s.first = inout(zeros, accumulator(), {count});
    s.second = inout(zeros, accumulator(), {count});
    return s;
  }
};
KINTSUGI_ON_EACH_BACKEND(AdamWTest);

TEST_P(AdamWTest, SeveralSteps) {
  for (const std::int64_t count : {1, 7, 64, 1003, 40001})
    for (const double decay : {0.0, 0.1}) {
      SCOPED_TRACE(fmt::format("{} weights, decay {}", count, decay));
      PlainAdamW plain{rounded(normal(count), accumulator()),
                       Values(static_cast<std::size_t>(count), 0.0),
                       Values(static_cast<std::size_t>(count), 0.0)};
      const State s = state(plain.weight);
      AdamWOptions o{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = decay};
      for (o.step = 1; o.step <= 5; ++o.step) {
        o.lr *= 0.8;
        const Values gradient = rounded(normal(count, 0.1), accumulator());
        const double scale = 0.5 / static_cast<double>(o.step);
        plain.step(gradient, rounded({scale}, accumulator())[0], o);
        backend().adamw(s.weight, s.master, s.first, s.second, in(gradient, accumulator(), {count}),
                        in(Values{scale}, accumulator(), {1}), o);
        expect_close("first moment", read(s.first), plain.first, accumulator(),
                     {8, accumulator(), {0.1}});
        expect_close("second moment", read(s.second), plain.second, accumulator(),
                     {8, accumulator()});
        expect_close("master", read(s.master), plain.weight, accumulator(), {8, accumulator()});
        EXPECT_EQ(read(s.weight), rounded(read(s.master), type()));
      }
      finish();
    }
}

TEST_P(AdamWTest, WithoutGradientOnlyDecays) {
  const Values w = rounded({1.0, -2.0, 0.0, 0.5, 3.0}, accumulator());
  const State s = state(w);
  backend().adamw(s.weight, s.master, s.first, s.second, in(Values(5, 0.0), accumulator(), {5}),
                  in(Values{1.0}, accumulator(), {1}), {.lr = 0.1, .weight_decay = 0.5});
  expect_close("master", read(s.master), {0.95, -1.9, 0.0, 0.475, 2.85}, accumulator(),
               {2, accumulator()});
  EXPECT_EQ(read(s.first), Values(5, 0.0));
}

// Steps below the resolution of a 16-bit weight must add up in the master.
TEST_P(AdamWTest, SmallStepsAddUpInTheMaster) {
  const State s = state({1.0});
  const Tensor gradient = in(Values{1.0}, accumulator(), {1}),
               scale = in(Values{1.0}, accumulator(), {1});
  for (int step = 1; step <= 100; ++step)
    backend().adamw(s.weight, s.master, s.first, s.second, gradient, scale,
                    {.lr = 1e-4, .step = step});
  EXPECT_NEAR(read(s.master)[0], 0.99, 1e-5);
  EXPECT_NEAR(read(s.weight)[0], 0.99, 1e-5 + unit_roundoff(type()));
}

TEST_P(AdamWTest, AnOverflowChangesNothing) {
  const Values w = rounded(normal(300), accumulator());
  const State s = state(w);
  const Values gradient = rounded(normal(300), accumulator());
  backend().adamw(s.weight, s.master, s.first, s.second, in(gradient, accumulator(), {300}),
                  in(Values{1.0}, accumulator(), {1}), {.lr = 0.1, .weight_decay = 0.1});
  const Values weight = read(s.weight), master = read(s.master), first = read(s.first),
               second = read(s.second);
  for (const double scale : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    Values overflown = gradient;
    overflown[13] = INFINITY;
    backend().adamw(s.weight, s.master, s.first, s.second, in(overflown, accumulator(), {300}),
                    in(Values{scale}, accumulator(), {1}),
                    {.lr = 0.1, .weight_decay = 0.1, .step = 2});
    EXPECT_EQ(read(s.weight), weight);
    EXPECT_EQ(read(s.master), master);
    EXPECT_EQ(read(s.first), first);
    EXPECT_EQ(read(s.second), second);
  }
}

TEST_P(AdamWTest, MovingAverage) {
  for (const std::int64_t count : {1, 7, 1003, 40001}) {
    SCOPED_TRACE(count);
    const Values start = rounded(normal(count), accumulator()),
                 x = rounded(normal(count), accumulator());
    const Tensor average = inout(start, accumulator(), {count}),
                 from = in(x, accumulator(), {count});
    backend().moving_average(average, from, 0.125, in(Values{0.5}, accumulator(), {1}));
    Values expected;
    for (std::size_t i = 0; i < x.size(); ++i) expected.push_back(0.875 * start[i] + 0.125 * x[i]);
    expect_close("average", read(average), expected, accumulator(), {4, accumulator(), {8.0}});
    const Values once = read(average);
    backend().moving_average(average, from, 0.125,
                             in(Values{static_cast<double>(NAN)}, accumulator(), {1}));
    EXPECT_EQ(read(average), once) << "a skipped step";
    finish();
  }
}

// Stochastic rounding to bf16, in double. core/philox.h gives each element 16 random
// bits for the first moment and 16 for the second.
double stochastically_rounded(double value, std::uint32_t random16) {
  if (value == 0.0) return 0.0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1.0, exponent - 8);  // bf16 keeps 8 bits
  const double below = std::floor(std::abs(value) / unit) * unit;
  const double rest = (std::abs(value) - below) / unit;  // in [0, 1)
  const double rounded = rest + random16 / 65536.0 >= 1.0 ? below + unit : below;
  return std::copysign(rounded, value);
}

TEST_P(AdamWTest, StochasticRoundingFollowsItsBits) {
  if (accumulator() == DType::F64) GTEST_SKIP() << "moments of fp64 runs are fp64";
  const std::int64_t count = 4099;
  const std::uint64_t key = 0x1234567;
  const auto first_element = std::int64_t{4} * 77;
  const Values w = rounded(normal(count), accumulator());
  const State s = state(w);
  const Values zeros(static_cast<std::size_t>(count), 0.0);
  const Tensor first = inout(zeros, DType::BF16, {count}),
               second = inout(zeros, DType::BF16, {count});
  const Values gradient = rounded(normal(count), accumulator());
  backend().adamw(s.weight, s.master, first, second, in(gradient, accumulator(), {count}),
                  in(Values{1.0}, accumulator(), {1}),
                  {.lr = 0.1,
                   .beta1 = 0.5,
                   .beta2 = 0.75,  // exact in binary, so the moments are exact before rounding
                   .rounding_key = key,
                   .first_element = first_element});
  const Values got1 = read(first), got2 = read(second);
  int up = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto element = static_cast<std::uint64_t>(first_element + i);
    const std::uint32_t bits = Philox::draw(key, element / 4)[element % 4];
    EXPECT_EQ(got1[at], stochastically_rounded(0.5 * gradient[at], bits & 0xFFFF)) << i;
    up += std::abs(got1[at]) > std::abs(0.5 * gradient[at]);
    // The square is rounded to fp32 first, so its rounding to bf16 may go either way.
    EXPECT_NEAR(got2[at], 0.25 * gradient[at] * gradient[at],
                0.25 * gradient[at] * gradient[at] * 0x1p-7);
  }
  EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(count), 0.5, 0.05);
  finish();
}

// A change of a thousandth of the value is less than half an ulp of bf16: rounded to nearest, a
// moment never changes; with stochastic rounding it is right on average.
TEST_P(AdamWTest, StochasticRoundingLetsSmallChangesAddUp) {
  if (accumulator() == DType::F64) GTEST_SKIP() << "moments of fp64 runs are fp64";
  const std::int64_t count = 2048;
  for (const bool stochastic : {false, true}) {
    const State s = state(Values(static_cast<std::size_t>(count), 1.0));
    const Tensor first = inout(Values(static_cast<std::size_t>(count), 0.0), DType::BF16, {count}),
                 second = inout(Values(static_cast<std::size_t>(count), 1.0), DType::BF16, {count});
    const Tensor none = in(Values(static_cast<std::size_t>(count), 0.0), accumulator(), {count}),
                 scale = in(Values{1.0}, accumulator(), {1});
    for (std::int64_t step = 1; step <= 200; ++step)
      backend().adamw(
          s.weight, s.master, first, second, none, scale,
          {.lr = 0.0,
           .beta2 = 0.999,
           .step = step,
           .rounding_key = stochastic ? derive_key(9, static_cast<std::uint64_t>(step)) : 0});
    double mean = 0;
    for (const double value : read(second)) mean += value / static_cast<double>(count);
    EXPECT_NEAR(mean, stochastic ? std::pow(0.999, 200) : 1.0, stochastic ? 0.002 : 0.0);
    finish();
  }
}

}  // namespace
}  // namespace kintsugi
