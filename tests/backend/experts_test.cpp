// What experts compute: grouped matmuls, the activation, and the sums per token.
#include <numeric>

#include "backend/fp8_fixture.h"

namespace kintsugi {
namespace {

using Counts = std::vector<std::int64_t>;  // rows of each expert

class ExpertsTest : public Fp8Operands {
 protected:
  // Rows of experts on the host, and on the device with unused rows after them.
  struct Rows {
    Ids rows, offsets;
    std::int64_t tokens = 0, choices = 0, used = 0, room = 0;
    ExpertRows device;

    std::int64_t all() const { return used + room; }
    std::size_t experts() const { return offsets.size() - 1; }
    std::size_t token(std::size_t row) const {
      return static_cast<std::size_t>(rows[row] / choices);
    }
    std::size_t choice(std::size_t row) const { return static_cast<std::size_t>(rows[row]); }
    std::size_t expert(std::size_t row) const {
      return static_cast<std::size_t>(
          std::upper_bound(offsets.begin(), offsets.end(), static_cast<std::int32_t>(row)) -
          offsets.begin() - 1);
    }
  };
  Rows make_rows(const Counts& counts, std::int64_t choices = 3, std::int64_t room = 7) {
    Rows r;
    r.choices = choices;
    r.room = room;
    r.used = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    r.tokens = r.used / choices + 2;
    r.rows.resize(static_cast<std::size_t>(r.tokens * choices));
    std::iota(r.rows.begin(), r.rows.end(), 0);
    std::shuffle(r.rows.begin(), r.rows.end(), shuffle_);
    r.rows.resize(static_cast<std::size_t>(r.used));
    r.offsets = {0};
    for (const std::int64_t count : counts) {
      const auto first = r.rows.begin() + r.offsets.back();
      std::sort(first, first + count);
      r.offsets.push_back(r.offsets.back() + static_cast<std::int32_t>(count));
    }
    return r;
  }
  // Unused rows have the number -1.
  void upload(Rows& r) {
    Ids all = r.rows;
    all.resize(static_cast<std::size_t>(r.all()), -1);
    r.device = {.rows = in(all, {r.all()}),
                .offsets = in(r.offsets, {static_cast<std::int64_t>(r.offsets.size())}),
                .choices = r.choices};
  }
  // A tensor whose unused rows are NaN, with gaps between rows if it is strided.
  Tensor rows_in(const Values& values, const Rows& r, std::int64_t width, std::int64_t gap = 0) {
    const Tensor x =
        gap == 0 ? buffer(type(), {r.all(), width}) : inside(type(), r.all(), width, gap, gap);
    write(x.rows(0, r.used), values);
    return x;
  }
  Tensor rows_out(const Rows& r, std::int64_t width, std::int64_t gap = 0) {
    const Tensor x =
        gap == 0 ? buffer(type(), {r.all(), width}) : inside(type(), r.all(), width, gap, gap);
    allow(x.rows(0, r.used));
    return x;
  }
  // Row `row` of a tensor with a row per token, or per row.
  static const double* at(const Values& x, const Rows& r, bool tokens, std::size_t row,
                          std::int64_t width) {
    return &x[(tokens ? r.token(row) : row) * static_cast<std::size_t>(width)];
  }

  std::mt19937_64 shuffle_{7};
};

// ---- matmuls
struct GroupedSize {
  Counts counts;
  std::int64_t n, k;
};
std::string describe(const GroupedSize& s) {
  return fmt::format("{} experts, {} rows, n {} k {}", s.counts.size(),
                     std::accumulate(s.counts.begin(), s.counts.end(), std::int64_t{0}), s.n, s.k);
}

// Rows of experts that fill a tile, exceed it, or are none; sizes that are multiples of words or
// not.
const GroupedSize kGrouped[] = {
    {{1}, 1, 1},        {{2, 0, 3}, 5, 7},     {{0, 1, 127, 129, 0}, 72, 40},
    {{130, 0}, 13, 31}, {{0, 0, 257}, 16, 64}, {{5, 70, 3}, 264, 200},
    {{3, 66}, 65, 130}, {{0, 0}, 8, 8},        {Counts(70, 1), 16, 24},
};

class GroupedMatmulTest : public ExpertsTest {
 protected:
  // c, and what bounds its error: the sums of the magnitudes, and of those that may be lost.
  struct Expected {
    Values c, size, lost;
  };
  Expected reference(const Values& before, const Values& a, const Values& b, const Rows& r,
                     std::int64_t n, std::int64_t k, const GroupedOptions& options) const {
    Expected x = {.c = before, .size = magnitudes(before), .lost = Values(before.size())};
    for (std::size_t row = 0; row < r.rows.size(); ++row) {
      const double* const left = at(a, r, options.tokens_a, row, k);
      const double* const matrix = &b[r.expert(row) * static_cast<std::size_t>(n * k)];
      for (std::int64_t j = 0; j < n; ++j) {
        const std::size_t to = row * static_cast<std::size_t>(n) + static_cast<std::size_t>(j);
        for (std::int64_t i = 0; i < k; ++i) {
          const double right = matrix[options.transpose_b ? j * k + i : i * n + j];
          const double product = options.scale * left[i] * right;
          x.c[to] += product;
          x.size[to] += std::abs(product);
          if (may_be_lost(left[i]) || may_be_lost(right)) x.lost[to] += std::abs(product);
        }
      }
    }
    return x;
  }
  void check(const GroupedSize& s, const GroupedOptions& options, std::int64_t gap = 0) {
    SCOPED_TRACE(describe(s) + (options.transpose_b ? " b^T" : "") +
                 (options.tokens_a ? " of tokens" : "") + (options.accumulate ? " added" : "") +
                 fmt::format(" times {}", options.scale));
    Rows r = make_rows(s.counts);
    const auto experts = static_cast<std::int64_t>(r.experts());
    const Values a = activations((options.tokens_a ? r.tokens : r.used) * s.k),
                 b = activations(experts * s.n * s.k);
    const Values before = options.accumulate ? activations(r.used * s.n)
                                             : Values(static_cast<std::size_t>(r.used * s.n));
    const Expected expected = reference(before, a, b, r, s.n, s.k, options);
    upload(r);
    const Tensor left = options.tokens_a ? in(a, type(), {r.tokens, s.k}) : rows_in(a, r, s.k, gap);
    const Tensor right =
        in(b, type(), options.transpose_b ? Shape{experts, s.n, s.k} : Shape{experts, s.k, s.n});
    const Tensor c = rows_out(r, s.n, gap);
    if (options.accumulate) write(c.rows(0, r.used), before);
    backend().grouped_matmul(c, left, right, r.device, options);
    if (r.used > 0)
      expect_close(
          "c", read(c.rows(0, r.used)), expected.c, type(),
          {4 + std::sqrt(static_cast<double>(s.k)), accumulator(), expected.size, expected.lost});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(GroupedMatmulTest);

TEST_P(GroupedMatmulTest, RowsTimesTheMatrixOfTheirExpert) {
  for (const GroupedSize& s : kGrouped)
    for (const bool transpose_b : {false, true}) check(s, {.transpose_b = transpose_b});
}

TEST_P(GroupedMatmulTest, RowsOfTokens) {
  for (const GroupedSize& s : kGrouped)
    for (const bool transpose_b : {false, true})
      check(s, {.transpose_b = transpose_b, .tokens_a = true});
}

TEST_P(GroupedMatmulTest, ScaledAndAddedToWhatWasThere) {
  for (const GroupedSize& s : kGrouped)
    for (const bool transpose_b : {false, true})
      for (const bool accumulate : {false, true})
        check(s, {.transpose_b = transpose_b,
                  .tokens_a = transpose_b,
                  .accumulate = accumulate,
                  .scale = accumulate && !transpose_b ? 1.0 : 0.75});
  for (const std::int64_t gap : {8, 3})
    check({{9, 130}, 24, 40}, {.accumulate = true, .scale = -2}, gap);
}

TEST_P(GroupedMatmulTest, RowsWithGaps) {
  for (const std::int64_t gap : {8, 3})
    for (const bool transpose_b : {false, true})
      check({{9, 130}, 24, 40}, {.transpose_b = transpose_b}, gap);
}

TEST_P(GroupedMatmulTest, NoRowsAtAll) {
  Rows r = make_rows({0, 0, 0}, 2, 0);
  r.device = {
      .rows = Tensor(nullptr, DType::I32, {0}), .offsets = in(Ids(4, 0), {4}), .choices = 2};
  const Tensor empty(nullptr, type(), {0, 8});
  backend().grouped_matmul(empty, empty, in(activations(3 * 64), type(), {3, 8, 8}), r.device, {});
}

// A row's result does not depend on the rows beside it.
TEST_P(GroupedMatmulTest, RowsAreComputedAlike) {
  const std::int64_t n = 40, k = 136;
  const Values row = activations(k), b = activations(2 * n * k);
  Values first;
  for (const Counts& counts : {Counts{1, 0}, Counts{129, 2}, Counts{200, 77}}) {
    Rows r = make_rows(counts);
    upload(r);
    Values a;
    for (std::int64_t i = 0; i < r.used; ++i) a.insert(a.end(), row.begin(), row.end());
    const Tensor c = rows_out(r, n);
    backend().grouped_matmul(c, rows_in(a, r, k), in(b, type(), {2, k, n}), r.device, {});
    const Values found = read(c.rows(0, counts[0]));
    if (first.empty()) first.assign(found.begin(), found.begin() + n);
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(found[i], first[i % static_cast<std::size_t>(n)]) << i;
    finish();
  }
}

// ---- operands in fp8: sums of the numbers that they stand for
class GroupedFp8Test : public GroupedMatmulTest {
 protected:
  void check_fp8(const GroupedSize& s, const GroupedOptions& options, std::int64_t gap = 0) {
    SCOPED_TRACE(describe(s) + (options.tokens_a ? " of tokens" : "") +
                 (options.accumulate ? " added" : "") + (options.fast_accumulation ? " fast" : ""));
    Rows r = make_rows(s.counts);
    const Operand a = operand(options.tokens_a ? r.tokens : r.all(), s.k),
                  b = operand(static_cast<std::int64_t>(r.experts()) * s.n, s.k);
    const Values before = options.accumulate ? activations(r.used * s.n)
                                             : Values(static_cast<std::size_t>(r.used * s.n));
    GroupedOptions transposed = options;
    transposed.transpose_b = true;
    Expected expected =
        reference(Values(before.size()), a.numbers, b.numbers, r, s.n, s.k, transposed);
    for (std::size_t i = 0; i < before.size(); ++i) {
      expected.c[i] += before[i];
      expected.size[i] += std::abs(before[i]);
    }
    upload(r);
    const Tensor c = rows_out(r, s.n, gap);
    if (options.accumulate) write(c.rows(0, r.used), before);
    backend().grouped_matmul_fp8(c, a.tensor, b.tensor, r.device, options);
    if (r.used > 0)
      expect_close(
          "c", read(c.rows(0, r.used)), expected.c, type(),
          {rounds_of(s.k, options.fast_accumulation), accumulator(), expected.size, expected.lost});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(GroupedFp8Test);

TEST_P(GroupedFp8Test, RowsTimesTheMatrixOfTheirExpert) {
  Counts many(70, 0);  // experts, few of which have rows
  many[3] = many[40] = many[69] = 1;
  for (const GroupedSize& s :
       {GroupedSize{{1}, 16, 16}, GroupedSize{{0, 1, 129, 0}, 80, 48}, GroupedSize{{5}, 272, 528},
        GroupedSize{{0, 0}, 16, 16}, GroupedSize{many, 32, 144}})
    for (const bool fast : {false, true})
      check_fp8(s, {.tokens_a = fast, .fast_accumulation = fast});
}

TEST_P(GroupedFp8Test, AddedToWhatWasThere) {
  for (const bool fast : {false, true})
    check_fp8({{3, 0, 20}, 48, 272}, {.accumulate = true, .fast_accumulation = fast});
}

TEST_P(GroupedFp8Test, ResultsWithGaps) {
  for (const std::int64_t gap : {8, 3})
    for (const bool accumulate : {false, true})
      check_fp8({{9, 130}, 32, 48}, {.tokens_a = true, .accumulate = accumulate}, gap);
}

class GroupedGradientTest : public ExpertsTest {
 protected:
  // m and n: the sizes of a matrix
  void check(const Counts& counts, std::int64_t m, std::int64_t n, const GroupedOptions& options,
             DType stored, std::int64_t gap = 0) {
    SCOPED_TRACE(describe(GroupedSize{counts, n, m}) + (options.tokens_a ? " a of tokens" : "") +
                 (options.tokens_b ? " b of tokens" : "") + (options.accumulate ? " added" : "") +
                 " in " + std::string(to_string(stored)));
    Rows r = make_rows(counts);
    const auto experts = static_cast<std::int64_t>(r.experts());
    const Values a = activations((options.tokens_a ? r.tokens : r.used) * m),
                 b = activations((options.tokens_b ? r.tokens : r.used) * n);
    Values expected(static_cast<std::size_t>(experts * m * n), 0.0);
    if (options.accumulate) expected = rounded(normal(experts * m * n), stored);
    const Values before = expected;
    Values size = magnitudes(expected), lost(expected.size());
    for (std::size_t row = 0; row < r.rows.size(); ++row) {
      const double* const left = at(a, r, options.tokens_a, row, m);
      const double* const right = at(b, r, options.tokens_b, row, n);
      const std::size_t first = r.expert(row) * static_cast<std::size_t>(m * n);
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          const std::size_t to = first + static_cast<std::size_t>(i * n + j);
          const double product = left[i] * right[j];
          expected[to] += product;
          size[to] += std::abs(product);
          if (may_be_lost(left[i]) || may_be_lost(right[j])) lost[to] += std::abs(product);
        }
    }
    upload(r);
    const Tensor left = options.tokens_a ? in(a, type(), {r.tokens, m}) : rows_in(a, r, m, gap);
    const Tensor right = options.tokens_b ? in(b, type(), {r.tokens, n}) : rows_in(b, r, n, gap);
    const Tensor dw = out(stored, {experts, m, n});
    if (options.accumulate) write(dw, before);
    backend().grouped_weight_gradient(dw, left, right, r.device, options);
    const double most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
    expect_close("dw", read(dw), expected, stored,
                 {4 + std::sqrt(most), accumulator(), size, lost});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(GroupedGradientTest);

// Of an expert without rows: zeros, or what was there before.
TEST_P(GroupedGradientTest, SumsOverTheRowsOfAnExpert) {
  for (const GroupedSize& s : kGrouped)
    for (const bool accumulate : {false, true})
      for (const DType stored : {type(), accumulator()}) {
        if (stored == type() && stored == accumulator() && !accumulate) continue;  // once is enough
        check(s.counts, s.k, s.n, {.accumulate = accumulate}, stored);
      }
  check({1, 0, 2}, 7, 5, {}, type());
  check({1, 0, 200}, 16, 24, {}, type());
}

TEST_P(GroupedGradientTest, RowsOfTokens) {
  for (const bool tokens_a : {false, true})
    for (const bool tokens_b : {false, true})
      for (const bool accumulate : {false, true}) {
        const GroupedOptions options = {
            .tokens_a = tokens_a, .tokens_b = tokens_b, .accumulate = accumulate};
        check({0, 1, 127, 129, 0, 64, 65}, 24, 40, options, accumulator());
        check({3, 70}, 13, 9, options, accumulator());
      }
}

// Every row is added to one sum, which is rounded once.
TEST_P(GroupedGradientTest, ManyRowsOfOneExpert) {
  for (const bool tokens : {false, true})
    check({0, 1100, 3}, 16, 8, {.tokens_a = tokens, .tokens_b = tokens}, type());
}

TEST_P(GroupedGradientTest, LargeMatrices) {
  check({0, 5, 100}, 136, 264, {}, type());
  check({70, 0}, 130, 67, {}, type());
}

TEST_P(GroupedGradientTest, RowsWithGaps) {
  for (const std::int64_t gap : {8, 3}) check({9, 130}, 24, 40, {}, accumulator(), gap);
}

// ---- the activation
double sigma(double x) { return 1 / (1 + std::exp(-x)); }

class ExpertSwigluTest : public ExpertsTest {
 protected:
  struct Case {
    Rows r;
    std::int64_t width = 0;
    Values gate_up, dout, weights;
  };
  Case make(const Counts& counts, std::int64_t width) {
    Case c = {.r = make_rows(counts), .width = width, .gate_up = {}, .dout = {}, .weights = {}};
    c.gate_up = activations(c.r.used * 2 * width, 2.0);
    c.dout = activations(c.r.used * width);
    c.weights = rounded(normal(c.r.tokens * c.r.choices, 0.5, 0.5), accumulator());
    return c;
  }
  Tensor weights_in(const Case& c) {
    return in(c.weights, accumulator(), {c.r.tokens, c.r.choices});
  }
  void check(const Counts& counts, std::int64_t width) {
    SCOPED_TRACE(fmt::format("{} experts, width {}", counts.size(), width));
    Case c = make(counts, width);
    const auto n = static_cast<std::size_t>(width);
    Values y(c.dout.size()), dgate_up(c.gate_up.size()), dweights, size;
    for (std::size_t row = 0; row < c.r.rows.size(); ++row) {
      const double weight = c.weights[c.r.choice(row)];
      double dweight = 0, sizes = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double gate = c.gate_up[row * 2 * n + i], up = c.gate_up[row * 2 * n + n + i],
                     d = c.dout[row * n + i], s = sigma(gate);
        y[row * n + i] = weight * gate * s * up;
        dgate_up[row * 2 * n + i] = weight * d * up * s * (1 + gate * (1 - s));
        dgate_up[row * 2 * n + n + i] = weight * d * gate * s;
        dweight += d * gate * s * up;
        sizes += std::abs(d * gate * s * up);
      }
      dweights.push_back(dweight);
      size.push_back(sizes + 1e-3);
    }
    upload(c.r);
    const Tensor from = rows_in(c.gate_up, c.r, 2 * width), weights = weights_in(c);
    const Tensor to = rows_out(c.r, width), gradient = rows_out(c.r, 2 * width);
    const Tensor dweight = buffer(accumulator(), {c.r.tokens, c.r.choices});
    for (const std::int32_t choice : c.r.rows)
      allow(dweight.view({c.r.tokens * c.r.choices}).rows(choice, 1));
    backend().expert_swiglu_forward(to, from, weights, c.r.device);
    backend().expert_swiglu_backward(gradient, dweight, rows_in(c.dout, c.r, width), from, weights,
                                     c.r.device);
    if (c.r.used > 0) {
      expect_close("out", read(to.rows(0, c.r.used)), y, type(), {8, accumulator()});
      expect_close("dgate_up", read(gradient.rows(0, c.r.used)), dgate_up, type(),
                   {8, accumulator()});
      const Values all = read(dweight);
      Values found;
      for (const std::int32_t choice : c.r.rows)
        found.push_back(all[static_cast<std::size_t>(choice)]);
      expect_close("dweights", found, dweights, accumulator(),
                   {16 + std::sqrt(static_cast<double>(width)), accumulator(), size});
    }
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(ExpertSwigluTest);

TEST_P(ExpertSwigluTest, WeighedRows) {
  for (const std::int64_t width : {1, 7, 64, 33, 1001}) check({0, 3, 1, 12}, width);
  check({129, 0, 127}, 24);
  check({0, 0}, 8);
}

class ExpertSwigluGradientTest : public ExpertSwigluTest {};
KINTSUGI_ON_EACH_BACKEND(ExpertSwigluGradientTest, {DType::F64});

TEST_P(ExpertSwigluGradientTest, MatchesDifferences) {
  Case c = make({2, 0, 3}, 6);
  upload(c.r);
  const Tensor from = rows_in(c.gate_up, c.r, 12), weights = weights_in(c);
  const Tensor y = rows_out(c.r, 6), gradient = rows_out(c.r, 12);
  const Tensor dweights = inout(Values(c.weights.size(), 0.0), type(), weights.shape());
  backend().expert_swiglu_backward(gradient, dweights, rows_in(c.dout, c.r, 6), from, weights,
                                   c.r.device);
  const auto forward = [&] {
    backend().expert_swiglu_forward(y, from, weights, c.r.device);
    return read(y.rows(0, c.r.used));
  };
  const Values along = normal(c.r.used * 12),
               along_weights = normal(static_cast<std::int64_t>(c.weights.size()));
  const auto of_inputs = [&](const Values& moved) {
    write(from.rows(0, c.r.used), moved);
    return forward();
  };
  EXPECT_NEAR(slope_along(of_inputs, c.gate_up, along, c.dout),
              dot(read(gradient.rows(0, c.r.used)), along), 1e-8);
  write(from.rows(0, c.r.used), c.gate_up);
  const auto of_weights = [&](const Values& moved) {
    write(weights, moved);
    return forward();
  };
  EXPECT_NEAR(slope_along(of_weights, c.weights, along_weights, c.dout),
              dot(read(dweights), along_weights), 1e-8);
}

// ---- sums per token
class CombineTest : public ExpertsTest {
 protected:
  enum class Residual { None, Other, Same };
  void check(std::int64_t tokens, std::int64_t width, std::int64_t k, Residual kind) {
    SCOPED_TRACE(fmt::format("tokens {} width {} k {} residual {}", tokens, width, k,
                             static_cast<int>(kind)));
    // About half of the choices are other ranks'. Rows are read once, others are NaN.
    Ids positions(static_cast<std::size_t>(tokens * k), -1), order(positions.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), shuffle_);
    const std::size_t used = (positions.size() + 1) / 2;
    for (std::size_t row = 0; row < used; ++row)
      positions[static_cast<std::size_t>(order[row])] = static_cast<std::int32_t>(row);
    const auto rows = static_cast<std::int64_t>(used);
    const Values x = activations(rows * width), residual = activations(tokens * width);
    Values expected(residual.size(), 0.0);
    if (kind != Residual::None) expected = residual;
    Values size = magnitudes(expected);
    for (std::size_t i = 0; i < expected.size(); ++i)
      for (std::size_t slot = 0; slot < static_cast<std::size_t>(k); ++slot) {
        const auto n = static_cast<std::size_t>(width);
        const std::int32_t row = positions[i / n * static_cast<std::size_t>(k) + slot];
        if (row < 0) continue;
        expected[i] += x[static_cast<std::size_t>(row) * n + i % n];
        size[i] += std::abs(x[static_cast<std::size_t>(row) * n + i % n]);
      }
    const Tensor from = buffer(type(), {tokens * k, width});
    write(from.rows(0, rows), x);
    const Tensor y = out(type(), {tokens, width});
    if (kind == Residual::Same) write(y, residual);
    const Tensor at = in(positions, {tokens, k});
    if (kind == Residual::None)
      backend().combine_rows(y, from, at);
    else
      backend().combine_rows(y, from, at,
                             kind == Residual::Same ? y : in(residual, type(), {tokens, width}));
    expect_close("y", read(y), expected, type(), {2 + static_cast<double>(k), accumulator(), size});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(CombineTest);

TEST_P(CombineTest, AddsTheRowsOfAToken) {
  struct Size {
    std::int64_t tokens, width, k;
  };
  for (const Size& s : {Size{1, 1, 1}, Size{5, 7, 2}, Size{33, 64, 8}, Size{9, 1001, 3},
                        Size{2, 2056, 6}, Size{130, 24, 1}})
    for (const Residual kind : {Residual::None, Residual::Other, Residual::Same})
      check(s.tokens, s.width, s.k, kind);
}

// Rows without a token are left alone.
TEST_P(CombineTest, GathersTheRowsOfTokens) {
  struct Size {
    std::int64_t tokens, width, choices, used, room;
  };
  for (const Size& s : {Size{3, 1, 1, 2, 1}, Size{5, 7, 2, 9, 0}, Size{40, 64, 4, 33, 30},
                        Size{9, 1001, 3, 20, 7}, Size{6, 2048, 8, 40, 0}, Size{4, 8, 2, 0, 5}}) {
    const Values x = activations(s.tokens * s.width);
    Ids rows;
    Values expected;
    for (std::int64_t i = 0; i < s.used; ++i) {
      rows.push_back(static_cast<std::int32_t>((i * 7 + 3) % (s.tokens * s.choices)));
      const auto from = x.begin() + rows.back() / s.choices * s.width;
      expected.insert(expected.end(), from, from + s.width);
    }
    rows.resize(static_cast<std::size_t>(s.used + s.room), -1);
    const Tensor y = buffer(type(), {s.used + s.room, s.width});
    allow(y.rows(0, s.used));
    backend().gather_rows(
        y, in(x, type(), {s.tokens, s.width}),
        {.rows = in(rows, {s.used + s.room}),
         .offsets = in(
             Ids{0, static_cast<std::int32_t>(s.used / 2), static_cast<std::int32_t>(s.used)}, {3}),
         .choices = s.choices});
    EXPECT_EQ(read(y.rows(0, s.used)), expected);
    finish();
  }
}

TEST_P(CombineTest, GathersIds) {
  const Tensor y = out(DType::I32, {3, 2});
  backend().gather_rows(
      y, in(Ids{1, 2, 3, 4, 5, 6}, {3, 2}),
      {.rows = in(Ids{5, 0, 3}, {3}), .offsets = in(Ids{0, 3}, {2}), .choices = 2});
  Ids found(6);
  backend().download(found.data(), y);
  EXPECT_EQ(found, (Ids{5, 6, 1, 2, 3, 4}));
}

// In the order of the choices: (big + small) - big is 0, while other orders give `small`.
TEST_P(CombineTest, AddsInTheOrderOfTheChoices) {
  const double big = type() == DType::F64 ? 0x1p60 : type() == DType::F16 ? 0x1p15 : 0x1p30;
  const double small = type() == DType::F16 ? 0x1p-12 : 1.0;
  const std::int64_t width = 9;
  Values x;
  for (const double value : {small, -big, big, small}) x.insert(x.end(), width, value);
  const Tensor y = out(type(), {1, width});
  backend().combine_rows(y, in(x, type(), {4, width}), in(Ids{2, 0, 1, -1, 3}, {1, 5}));
  EXPECT_EQ(read(y), Values(width, small));
}

}  // namespace
}  // namespace kintsugi
