// matmul_fp8() against sums in double over the numbers that its operands stand for.
#include "backend/fp8_fixture.h"

namespace kintsugi {
namespace {

struct Fp8Problem {
  std::int64_t m, n, k;
  bool one_scale = false, fast = false;
};

std::string describe(const Fp8Problem& p) {
  return fmt::format("m {} n {} k {}{}{}", p.m, p.n, p.k, p.one_scale ? ", one scale" : "",
                     p.fast ? ", fast" : "");
}

class Fp8MatmulTest : public Fp8Test {
 protected:
  struct Case {
    Operand a, b;
    Values expected;
    Bound bound;
  };
  Case make(const Fp8Problem& p) {
    Case c{operand(p.m, p.k, p.one_scale), operand(p.n, p.k, p.one_scale), {}, {}};
    c.bound = {rounds_of(p.k, p.fast), accumulator(), {}};
    const auto k = static_cast<std::size_t>(p.k);
    for (std::size_t i = 0; i < c.a.numbers.size(); i += k)
      for (std::size_t j = 0; j < c.b.numbers.size(); j += k) {
        double sum = 0, size = 0;
        for (std::size_t l = 0; l < k; ++l) {
          const double product = c.a.numbers[i + l] * c.b.numbers[j + l];
          sum += product;
          size += std::abs(product);
        }
        c.expected.push_back(sum);
        c.bound.size.push_back(size);
      }
    return c;
  }
  static void add(Case& c, const Values& values) {  // values is a bias if it has only one row
    for (std::size_t i = 0; i < c.expected.size(); ++i) {
      c.expected[i] += values[i % values.size()];
      c.bound.size[i] += std::abs(values[i % values.size()]);
    }
  }
  bool runs(const Fp8Problem& p) { return backend().why_no_fp8(p.one_scale).empty(); }

  void check(const Fp8Problem& p, bool with_bias, bool with_residual, bool in_place) {
    if (!runs(p)) return;
    SCOPED_TRACE(fmt::format("{} bias {} residual {} in place {}", describe(p), with_bias,
                             with_residual, in_place));
    Case x = make(p);
    const Tensor c = allow(inside(type(), p.m, p.n, 16, 16));
    MatmulOptions options{.fast_accumulation = p.fast};
    if (with_bias) {
      const Values bias = activations(p.n);
      options.bias = in(bias, type(), {p.n});
      add(x, bias);
    }
    if (with_residual) {
      const Values residual = activations(p.m * p.n);
      if (in_place) write(c, residual);
      options.residual = in_place ? c : in(residual, type(), {p.m, p.n});
      add(x, residual);
      // cuBLASLt may round the sum before it adds c to it.
      if (in_place && type() != accumulator() && GetParam().backend.name != "cpu")
        x.bound.rounds += unit_roundoff(type()) / unit_roundoff(accumulator());
    }
    backend().matmul_fp8(c, x.a.tensor, x.b.tensor, options);
    expect_close("c", read(c), x.expected, type(), x.bound);
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(Fp8MatmulTest);

TEST_P(Fp8MatmulTest, EveryDepth) {
  for (const std::int64_t k : {16, 48, 4096, 18944})
    for (const bool one_scale : {false, true})
      for (const bool fast : {false, true}) {
        if (is_brief(16 * k)) check({32, 48, k, one_scale, fast}, false, false, false);
        if (k <= 48) check({272, 528, k, one_scale, fast}, false, false, false);
      }
}

TEST_P(Fp8MatmulTest, BiasAndResidual) {
  for (const bool one_scale : {false, true}) {
    const Fp8Problem p{.m = 64, .n = 48, .k = 160, .one_scale = one_scale};
    check(p, true, false, false);
    check(p, false, true, false);
    check(p, false, true, true);
    check(p, true, true, false);
    check(p, true, true, true);
  }
}

// Weight gradients: sums over micro-batches in accumulator precision.
TEST_P(Fp8MatmulTest, Accumulates) {
  for (const bool one_scale : {false, true}) {
    const Fp8Problem p{.m = 48, .n = 80, .k = 256, .one_scale = one_scale};
    if (!runs(p)) continue;
    SCOPED_TRACE(describe(p));
    const Values before = rounded(normal(p.m * p.n), accumulator());
    const Tensor c = inout(before, accumulator(), {p.m, p.n});
    Values expected = before, size = magnitudes(before);
    Bound bound;
    for (int i = 0; i < 3; ++i) {
      const Case x = make(p);
      bound = x.bound;
      for (std::size_t j = 0; j < expected.size(); ++j) {
        expected[j] += x.expected[j];
        size[j] += x.bound.size[j];
      }
      backend().matmul_fp8(c, x.a.tensor, x.b.tensor, {.accumulate = true});
    }
    bound.size = size;
    expect_close("c", read(c), expected, accumulator(), bound);
    finish();
  }
}

// The precision of a run decides c; the quantized operands are the same.
TEST_P(Fp8MatmulTest, MultipliesWhatQuantizeWrites) {
  const std::int64_t m = 48, n = 32, k = 96;
  if (!backend().why_no_fp8(false).empty()) GTEST_SKIP() << backend().why_no_fp8(false);
  const Values dy = activations(k * m), x = activations(k * n);
  const Quantized a = quantized(m, k, false), b = quantized(n, k, false);
  backend().quantize({}, a, in(dy, type(), {k, m}), {});
  backend().quantize({}, b, in(x, type(), {k, n}), {});
  const Tensor c = out(accumulator(), {m, n});
  backend().matmul_fp8(c, a, b);
  // A number is within 2^-4 of its code, or within 2^-10 scales, which are at most 2^-7 of the
  // largest number.
  Values expected, allowed;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, error = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double left = dy[static_cast<std::size_t>(l * m + i)],
                     right = x[static_cast<std::size_t>(l * n + j)];
        sum += left * right;
        error += (std::abs(left) + 1e-3) * (std::abs(right) + 1e-3);
      }
      expected.push_back(sum);
      allowed.push_back(0.14 * error);
    }
  const Values actual = read(c);
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], allowed[i]) << i;
}

}  // namespace
}  // namespace kintsugi
