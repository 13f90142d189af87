#include <numbers>

#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

struct Problem {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
};

std::string describe(const Problem& p) {
  return fmt::format("m {} n {} k {}{}{}", p.m, p.n, p.k, p.transpose_a ? " a^T" : "",
                     p.transpose_b ? " b^T" : "");
}

Shape shape_a(const Problem& p) { return p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k}; }
Shape shape_b(const Problem& p) { return p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n}; }

// op(a) op(b), element by element.
Values multiply(const Problem& p, const Values& a, const Values& b) {
  Values c(static_cast<std::size_t>(p.m * p.n), 0.0);
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t l = 0; l < p.k; ++l) {
      const double left = a[static_cast<std::size_t>(p.transpose_a ? l * p.m + i : i * p.k + l)];
      for (std::int64_t j = 0; j < p.n; ++j)
        c[static_cast<std::size_t>(i * p.n + j)] +=
            left * b[static_cast<std::size_t>(p.transpose_b ? j * p.k + l : l * p.n + j)];
    }
  return c;
}

const Problem kProblems[] = {
    {1, 1, 1},     {1, 7, 5},     {2, 3, 1},     {3, 1, 130},    {17, 13, 31},  {64, 64, 64},
    {65, 130, 33}, {5, 1000, 17}, {263, 40, 97}, {20, 260, 521}, {521, 9, 513}, {1, 300, 64},
};

class MatmulTest : public OperationTest {
 protected:
  // The operands of a matmul, its expected result, and the bound of its error.
  struct Case {
    Values a, b, expected;
    Bound bound;
  };
  Case make(const Problem& p) {
    Case c;
    c.a = activations(p.m * p.k);
    c.b = activations(p.k * p.n);
    c.expected = multiply(p, c.a, c.b);
    c.bound = {4 + std::sqrt(static_cast<double>(p.k)), accumulator(),
               multiply(p, magnitudes(c.a), magnitudes(c.b))};
    return c;
  }
  static void plus(Values& to, const Values& values) {  // values is a bias if it has only one row
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i % values.size()];
  }
  void add(Case& c, const Values& values) {
    plus(c.expected, values);
    plus(c.bound.size, magnitudes(values));
  }
  // Checks a matmul with or without bias and residual. in_place: the residual is c itself.
  void check(const Problem& p, bool with_bias, bool with_residual, bool in_place) {
    SCOPED_TRACE(fmt::format("{} bias {} residual {} in place {}", describe(p), with_bias,
                             with_residual, in_place));
    Case x = make(p);
    const Tensor a = in(x.a, type(), shape_a(p)), b = in(x.b, type(), shape_b(p));
    Tensor c = out(type(), {p.m, p.n});
    MatmulOptions options{.transpose_a = p.transpose_a, .transpose_b = p.transpose_b};
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
    }
    backend().matmul(c, a, b, options);
    expect_close("c", read(c), x.expected, type(), x.bound);
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(MatmulTest);

TEST_P(MatmulTest, RowsAlike) {
  const Problem p{.m = 64, .n = 200, .k = 300, .transpose_b = true};
  const Values row = activations(p.k);
  Values a;
  for (std::int64_t i = 0; i < p.m; ++i) a.insert(a.end(), row.begin(), row.end());
  const Tensor c = out(type(), {p.m, p.n});
  backend().matmul(c, in(a, type(), shape_a(p)), in(activations(p.n * p.k), type(), shape_b(p)),
                   {.transpose_b = true, .rows_alike = true});
  const Values values = read(c);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], values[i % static_cast<std::size_t>(p.n)]) << i;
}

// A vocabulary that is not a multiple of 8, in logits whose rows are padded: as columns, as the
// terms of a gradient, and as the rows of another.
TEST_P(MatmulTest, UnalignedExtentsInPaddedRows) {
  const auto check_padded = [&](const Problem& p, bool accumulate) {
    SCOPED_TRACE(fmt::format("{} accumulate {}", describe(p), accumulate));
    Case x = make(p);
    const auto padding = [](std::int64_t width) { return (8 - width % 8) % 8; };
    const Shape of_a = shape_a(p);
    const Tensor a = inside(type(), of_a[0], of_a[1], 0, padding(of_a[1])),
                 b = in(x.b, type(), shape_b(p)),
                 c = allow(inside(type(), p.m, p.n, 0, padding(p.n)));
    write(a, x.a);
    if (accumulate) {
      const Values before = activations(p.m * p.n);
      write(c, before);
      add(x, before);
    }
    backend().matmul(
        c, a, b,
        {.transpose_a = p.transpose_a, .transpose_b = p.transpose_b, .accumulate = accumulate});
    expect_close("c", read(c), x.expected, type(), x.bound);
    finish();
  };
  check_padded({40, 8197, 24, false, true}, false);
  for (const bool accumulate : {false, true}) check_padded({40, 24, 8197}, accumulate);
  // Not added to 16-bit results, which cuBLASLt rounds twice.
  check_padded({8197, 24, 40, true}, false);
}

TEST_P(MatmulTest, EveryTranspose) {
  for (Problem p : kProblems)
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        p.transpose_a = transpose_a;
        p.transpose_b = transpose_b;
        check(p, false, false, false);
      }
}

TEST_P(MatmulTest, BiasAndResidual) {
  for (const Problem& p : {Problem{1, 5, 3}, Problem{65, 33, 17, false, true},
                           Problem{290, 300, 20, false, true}, Problem{13, 7, 41, true, false}}) {
    check(p, true, false, false);
    check(p, false, true, false);
    check(p, false, true, true);
    check(p, true, true, false);
    check(p, true, true, true);
  }
}

// Decoding: few rows, whose columns are shared among warps in different ways.
TEST_P(MatmulTest, FewRows) {
  for (const Problem& p : {Problem{1, 300, 520, false, true}, Problem{2, 9001, 24, false, true},
                           Problem{3, 70, 2056, false, true}, Problem{4, 1061, 64, false, true},
                           Problem{1, 34001, 8, false, true}, Problem{5, 33, 256, false, true}}) {
    check(p, false, false, false);
    check(p, true, true, true);
  }
}

// silu(left) * right of the rounded result; the weights may be read early.
TEST_P(MatmulTest, SwigluOfTheResult) {
  for (const Problem& p : {Problem{1, 6, 8, false, true}, Problem{2, 700, 264, false, true},
                           Problem{4, 4300, 32, false, true}, Problem{3, 34, 17, false, false},
                           Problem{70, 66, 40, false, true}}) {
    SCOPED_TRACE(describe(p));
    Case x = make(p);
    const Tensor c = out(type(), {p.m, p.n}), activated = out(type(), {p.m, p.n / 2});
    const Values bias = activations(p.n);
    add(x, bias);
    const Tensor a = in(x.a, type(), shape_a(p)), b = in(x.b, type(), shape_b(p)),
                 added = in(bias, type(), {p.n});
    backend().synchronize();
    backend().matmul(
        c, a, b,
        {.transpose_b = p.transpose_b, .bias = added, .swiglu = activated, .constant_b = true});
    const Values before = read(c);
    expect_close("before", before, x.expected, type(), x.bound);
    Values expected;
    const auto columns = static_cast<std::size_t>(p.n);
    for (std::size_t i = 0; i < before.size(); ++i)
      if (i % columns < columns / 2)
        expected.push_back(before[i] / (1 + std::exp(-before[i])) * before[i + columns / 2]);
    expect_close("activated", read(activated), expected, type(),
                 {16, accumulator(), magnitudes(expected)});
    finish();
  }
}

// gelu and its derivative, in double.
double reference_gelu(double x) {
  const double u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}
double reference_gelu_slope(double x) {
  const double root = std::sqrt(2.0 / std::numbers::pi), u = root * (x + 0.044715 * x * x * x),
               t = std::tanh(u);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

TEST_P(MatmulTest, GeluOfTheResult) {
  for (const Problem& p : {Problem{1, 5, 3}, Problem{65, 33, 17, false, true}, Problem{64, 64, 40},
                           Problem{130, 256, 72, false, true}})
    for (const bool with_bias : {false, true}) {
      SCOPED_TRACE(fmt::format("{} bias {}", describe(p), with_bias));
      Case x = make(p);
      MatmulOptions options{.transpose_a = p.transpose_a, .transpose_b = p.transpose_b};
      if (with_bias) {
        const Values bias = activations(p.n);
        options.bias = in(bias, type(), {p.n});
        add(x, bias);
      }
      const Tensor c = out(type(), {p.m, p.n});
      options.gelu = out(type(), {p.m, p.n});
      backend().matmul(c, in(x.a, type(), shape_a(p)), in(x.b, type(), shape_b(p)), options);
      expect_close("before", read(c), x.expected, type(), x.bound);
      // gelu may be computed from c before or after rounding: one more rounding of c, times gelu's
      // derivative, which is below 1.13.
      Values expected = x.expected;
      Bound bound = x.bound;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        bound.size[i] = 1.13 * bound.size[i] + 1.13 * std::abs(expected[i]) *
                                                   unit_roundoff(type()) /
                                                   unit_roundoff(accumulator());
        expected[i] = reference_gelu(expected[i]);
      }
      expect_close("gelu", read(options.gelu), expected, type(), bound);
      finish();
    }
}

TEST_P(MatmulTest, GradientThroughGelu) {
  for (const Problem& p : {Problem{1, 5, 3}, Problem{65, 33, 17, false, true}, Problem{64, 64, 40},
                           Problem{130, 256, 72, false, true}}) {
    SCOPED_TRACE(describe(p));
    Case x = make(p);
    const Values before = activations(p.m * p.n);
    const Tensor c = out(type(), {p.m, p.n});
    backend().matmul(c, in(x.a, type(), shape_a(p)), in(x.b, type(), shape_b(p)),
                     {.transpose_a = p.transpose_a,
                      .transpose_b = p.transpose_b,
                      .gelu_input = in(before, type(), {p.m, p.n})});
    for (std::size_t i = 0; i < before.size(); ++i) {
      x.bound.size[i] = 1.13 * x.bound.size[i] + 1.13 * std::abs(x.expected[i]) *
                                                     unit_roundoff(type()) /
                                                     unit_roundoff(accumulator());
      x.expected[i] *= reference_gelu_slope(before[i]);
    }
    expect_close("gradient", read(c), x.expected, type(), x.bound);
    finish();
  }
}

TEST_P(MatmulTest, Accumulates) {
  for (const Problem& p :
       {Problem{1, 1, 1}, Problem{31, 65, 17, true, false}, Problem{270, 19, 64}}) {
    SCOPED_TRACE(describe(p));
    Case x = make(p);
    const Values before = activations(p.m * p.n);
    add(x, before);
    const Tensor c = inout(before, type(), {p.m, p.n});
    backend().matmul(
        c, in(x.a, type(), shape_a(p)), in(x.b, type(), shape_b(p)),
        {.transpose_a = p.transpose_a, .transpose_b = p.transpose_b, .accumulate = true});
    expect_close("c", read(c), x.expected, type(), x.bound);
    finish();
  }
}

// Weight gradients: operands in the run's precision, sums over micro-batches in the accumulator's.
TEST_P(MatmulTest, ResultInAccumulatorPrecision) {
  for (const Problem& p :
       {Problem{1, 3, 2}, Problem{33, 65, 130, true, false}, Problem{70, 300, 600, false, true}}) {
    SCOPED_TRACE(describe(p));
    const Case x = make(p), y = make(p);
    const Tensor c = out(accumulator(), {p.m, p.n});
    MatmulOptions options{.transpose_a = p.transpose_a, .transpose_b = p.transpose_b};
    backend().matmul(c, in(x.a, type(), shape_a(p)), in(x.b, type(), shape_b(p)), options);
    expect_close("first", read(c), x.expected, accumulator(), x.bound);
    options.accumulate = true;
    backend().matmul(c, in(y.a, type(), shape_a(p)), in(y.b, type(), shape_b(p)), options);
    Values both = x.expected;
    plus(both, y.expected);
    Bound bound = x.bound;
    plus(bound.size, y.bound.size);
    expect_close("both", read(c), both, accumulator(), bound);
    finish();
  }
}

TEST_P(MatmulTest, StridedOperands) {
  for (Problem p : {Problem{1, 3, 5}, Problem{65, 37, 19}, Problem{130, 270, 66}})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        p.transpose_a = transpose_a;
        p.transpose_b = transpose_b;
        SCOPED_TRACE(describe(p));
        Case x = make(p);
        const Shape rows_a = shape_a(p), rows_b = shape_b(p);
        const Tensor a = inside(type(), rows_a[0], rows_a[1], 8, 16),
                     b = inside(type(), rows_b[0], rows_b[1], 16, 8);
        write(a, x.a);
        write(b, x.b);
        const Values residual = activations(p.m * p.n);
        const Tensor c = allow(inside(type(), p.m, p.n, 24, 8)), r = inside(type(), p.m, p.n, 8, 8);
        write(r, residual);
        add(x, residual);
        backend().matmul(c, a, b,
                         {.transpose_a = transpose_a, .transpose_b = transpose_b, .residual = r});
        expect_close("c", read(c), x.expected, type(), x.bound);
        finish();
      }
}

TEST_P(MatmulTest, BiasGradientAddsColumnSums) {
  for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                    {2, 17},
                                    {17, 1},
                                    {65, 130},
                                    {1000, 33},
                                    {130, 1000}}) {
    SCOPED_TRACE(fmt::format("rows {} width {}", rows, width));
    const Values dy = activations(rows * width), before = rounded(normal(width), accumulator());
    Values expected = before, size = magnitudes(before);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      expected[i % static_cast<std::size_t>(width)] += dy[i];
      size[i % static_cast<std::size_t>(width)] += std::abs(dy[i]);
    }
    const Tensor dbias = inout(before, accumulator(), {width}),
                 strided = inside(type(), rows, width, 8, 3);
    write(strided, dy);
    const Bound bound{4 + std::sqrt(static_cast<double>(rows)), accumulator(), size};
    backend().bias_backward(dbias, in(dy, type(), {rows, width}));
    expect_close("dbias", read(dbias), expected, accumulator(), bound);
    write(dbias, before);
    backend().bias_backward(dbias, strided);
    expect_close("dbias of strided rows", read(dbias), expected, accumulator(), bound);
    finish();
  }
}

}  // namespace
}  // namespace kintsugi
