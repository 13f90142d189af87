#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

class MuonTest : public OperationTest {};
KINTSUGI_ON_EACH_BACKEND(MuonTest);

TEST_P(MuonTest, MomentumAndDirection) {
  for (const bool nesterov : {true, false})
    for (const std::int64_t count : {1, 7, 64, 1003, 40001}) {
      SCOPED_TRACE(fmt::format("{} elements, nesterov {}", count, nesterov));
      Values plain(static_cast<std::size_t>(count), 0.0);
      const Tensor moment = inout(plain, accumulator(), {count}),
                   direction = inout(plain, accumulator(), {count}),
                   low = inout(plain, type(), {count});
      const bool narrow = type() != accumulator();
      for (int step = 1; step <= 3; ++step) {
        const Values gradient = rounded(normal(count, 0.1), accumulator());
        const Tensor scale = in(Values{0.5}, accumulator(), {1}),
                     g = in(gradient, accumulator(), {count});
        Values expected(plain.size());
        for (std::size_t i = 0; i < plain.size(); ++i) {
          plain[i] = 0.9 * plain[i] + 0.1 * 0.5 * gradient[i];
          expected[i] = nesterov ? 0.9 * plain[i] + 0.1 * 0.5 * gradient[i] : plain[i];
        }
        backend().momentum(narrow && step == 3 ? low : direction, moment, g, scale,
                           {.momentum = 0.9, .nesterov = nesterov});
        expect_close("moment", read(moment), plain, accumulator(), {8, accumulator(), {0.1}});
        expect_close("direction", read(narrow && step == 3 ? low : direction), expected,
                     narrow && step == 3 ? type() : accumulator(), {8, accumulator(), {0.1}});
      }
      backend().momentum({}, moment, in(plain, accumulator(), {count}),
                         in(Values{1.0}, accumulator(), {1}), {.momentum = 0.5});
      expect_close("moment", read(moment), plain, accumulator(), {12, accumulator(), {0.1}});
      finish();
    }
}

TEST_P(MuonTest, AnOverflowChangesNothing) {
  const Values start = rounded(normal(301), accumulator());
  Values overflown = start;
  overflown[13] = INFINITY;
  const Tensor moment = inout(start, accumulator(), {301}), g = in(overflown, accumulator(), {301}),
               direction = inout(start, accumulator(), {301}),
               master = inout(start, accumulator(), {301});
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const Tensor scale = in(Values{bad}, accumulator(), {1});
    backend().momentum(direction, moment, g, scale, {});
    EXPECT_EQ(read(moment), start);
    EXPECT_EQ(read(direction), Values(301, 0.0));
    if (type() == accumulator()) {
      backend().descend(master, master, direction, scale, 0.5, 0.1);
      EXPECT_EQ(read(master), start);
    }
  }
}

TEST_P(MuonTest, Descend) {
  for (const std::int64_t count : {1, 6, 1003})
    for (const DType of : {accumulator(), type()}) {
      const Values w = rounded(normal(count), accumulator()), d = rounded(normal(count), of);
      const Tensor master = inout(w, accumulator(), {count});
      const Tensor weight = type() == accumulator() ? master : inout(w, type(), {count});
      backend().descend(weight, master, in(d, of, {count}), in(Values{1.0}, accumulator(), {1}),
                        0.75, 0.125);
      Values expected(w.size());
      for (std::size_t i = 0; i < w.size(); ++i) expected[i] = 0.75 * w[i] - 0.125 * d[i];
      expect_close("master", read(master), expected, accumulator(), {4, accumulator(), {1.0}});
      EXPECT_EQ(read(weight), rounded(read(master), type()));
      finish();
    }
}

TEST_P(MuonTest, DivideByNorms) {
  const Values x = rounded(normal(3 * 7 * 5), type());
  const Tensor tensor = inout(x, type(), {3, 7, 5});
  backend().divide_by_norms(tensor, in(Values{4.0, 1e-8, 0.25}, accumulator(), {3}), 1e-3);
  Values expected = x;
  for (std::size_t i = 0; i < x.size(); ++i) expected[i] /= i < 35 ? 2.0 : i < 70 ? 1e-3 : 0.5;
  expect_close("x", read(tensor), expected, type(), {2, accumulator(), {1000.0}});
}

// c = scale a b + residual_scale r for each matrix of a batch.
TEST_P(MuonTest, BatchOfScaledMatmuls) {
  constexpr std::int64_t kBatch = 3, kM = 24, kN = 40, kK = 16;
  const Values a = rounded(normal(kBatch * kM * kK), type()),
               b = rounded(normal(kBatch * kN * kK), type()),
               r = rounded(normal(kBatch * kM * kN), type());
  const Tensor c = inout(Values(r.size(), 0.0), type(), {kBatch, kM, kN});
  backend().matmul(c, in(a, type(), {kBatch, kM, kK}), in(b, type(), {kBatch, kN, kK}),
                   {.transpose_b = true,
                    .residual = in(r, type(), {kBatch, kM, kN}),
                    .scale = 0.5,
                    .residual_scale = -2.0});
  Values expected(r.size()), size(r.size());
  for (std::int64_t i = 0; i < kBatch; ++i)
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kN; ++n) {
        const auto at = static_cast<std::size_t>((i * kM + m) * kN + n);
        expected[at] = -2.0 * r[at];
        size[at] = std::abs(expected[at]);
        for (std::int64_t k = 0; k < kK; ++k) {
          const double term = 0.5 * a[static_cast<std::size_t>((i * kM + m) * kK + k)] *
                              b[static_cast<std::size_t>((i * kN + n) * kK + k)];
          expected[at] += term;
          size[at] += std::abs(term);
        }
      }
  expect_close("c", read(c), expected, type(), {8, accumulator(), size});
}

}  // namespace
}  // namespace kintsugi
