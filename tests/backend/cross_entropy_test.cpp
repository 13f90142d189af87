#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

struct Expected {
  Values losses, gradient, squared_log_z;
};

Expected reference(const Values& logits, std::int64_t vocabulary, const Ids& targets,
                   double gradient_scale, double z_loss = 0) {
  const auto n = static_cast<std::size_t>(vocabulary);
  Expected r{Values(targets.size(), 0.0), Values(logits.size(), 0.0), Values(targets.size(), 0.0)};
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    const double* z = &logits[row * n];
    const auto target = static_cast<std::size_t>(targets[row]);
    double top = -INFINITY, total = 0;
    for (std::size_t i = 0; i < n; ++i) top = std::max(top, z[i]);
    for (std::size_t i = 0; i < n; ++i) total += std::exp(z[i] - top);
    const double log_z = top + std::log(total);
    r.losses[row] = log_z - z[target];
    r.squared_log_z[row] = log_z * log_z;
    for (std::size_t i = 0; i < n; ++i) {
      const double softmax = std::exp(z[i] - top) / total;
      r.gradient[row * n + i] =
          gradient_scale * (softmax - (i == target ? 1 : 0) + 2 * z_loss * log_z * softmax);
    }
  }
  return r;
}

class CrossEntropyTest : public OperationTest {
 protected:
  // Every fifth row has no target.
  Ids targets(std::int64_t rows, std::int64_t vocabulary) {
    Ids ids = integers(rows, 0, static_cast<std::int32_t>(vocabulary) - 1);
    for (std::size_t row = 3; row < ids.size(); row += 5) ids[row] = row % 2 ? -1 : -100;
    return ids;
  }
};
KINTSUGI_ON_EACH_BACKEND(CrossEntropyTest);

TEST_P(CrossEntropyTest, LossAndGradient) {
  for (const auto& [rows, vocabulary] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                         {2, 2},
                                         {17, 67},
                                         {5, 1000},
                                         {65, 33},
                                         {9, 5003}}) {
    SCOPED_TRACE(fmt::format("rows {} vocabulary {}", rows, vocabulary));
    const double scale = 0.25;
    const Values z = activations(rows * vocabulary, 3.0);
    const Ids ids = targets(rows, vocabulary);
    const Expected expected = reference(z, vocabulary, ids, scale);
    const Tensor losses = out(accumulator(), {rows}), logits = inout(z, type(), {rows, vocabulary});
    backend().cross_entropy(losses, logits, in(ids, {rows}), {.gradient_scale = scale});
    // A loss is a difference of logits; a probability has the rounding error of its exponent.
    const double rounds = 8 + std::sqrt(static_cast<double>(vocabulary)) / 4;
    expect_close("losses", read(losses), expected.losses, accumulator(),
                 {rounds, accumulator(), {16.0}});
    const Values found = read(logits);
    expect_close("gradient", found, expected.gradient, type(),
                 {2 * rounds, accumulator(), {4 * scale}});
    for (std::int64_t row = 0; row < rows; ++row) {  // the gradients of a row sum to 0
      double total = 0, size = 0;
      for (std::int64_t i = 0; i < vocabulary; ++i) {
        total += found[static_cast<std::size_t>(row * vocabulary + i)];
        size += std::abs(found[static_cast<std::size_t>(row * vocabulary + i)]);
      }
      EXPECT_NEAR(
          total, 0,
          (unit_roundoff(type()) + rounds * unit_roundoff(accumulator())) * 2 * (size + scale) +
              (type() == DType::F16 ? static_cast<double>(vocabulary) * 0x1p-25 : 0))
          << "row " << row;
    }
    finish();
  }
}

TEST_P(CrossEntropyTest, ZLoss) {
  const std::int64_t rows = 17, vocabulary = 1003;
  const double scale = 0.25, z_loss = 0.03;
  const Values z = activations(rows * vocabulary, 3.0);
  const Ids ids = targets(rows, vocabulary);
  const Expected expected = reference(z, vocabulary, ids, scale, z_loss);
  const Tensor losses = out(accumulator(), {rows}), squares = out(accumulator(), {rows}),
               logits = inout(z, type(), {rows, vocabulary});
  backend().cross_entropy(losses, logits, in(ids, {rows}),
                          {.gradient_scale = scale, .z_loss = z_loss, .squared_log_z = squares});
  expect_close("losses", read(losses), expected.losses, accumulator(), {16, accumulator(), {16.0}});
  expect_close("squares", read(squares), expected.squared_log_z, accumulator(),
               {32, accumulator(), {256.0}});
  expect_close("gradient", read(logits), expected.gradient, type(),
               {32, accumulator(), {4 * scale}});
}

// Weights multiply all but the losses of the most likely tokens; also with the vocabulary sharded
// as 512 and 491 columns.
TEST_P(CrossEntropyTest, Weights) {
  const std::int64_t rows = 17, vocabulary = 1003, half = 512;
  const double scale = 0.25, z_loss = 0.03;
  const Values z = activations(rows * vocabulary, 3.0);
  const Ids ids = targets(rows, vocabulary);
  Values weights = rounded(normal(rows), accumulator());
  weights[1] = 0;
  weights[2] = -2;
  Expected expected = reference(z, vocabulary, ids, scale, z_loss);
  for (std::size_t row = 0; row < weights.size(); ++row) {
    expected.losses[row] *= weights[row];
    expected.squared_log_z[row] *= weights[row];
    for (std::size_t i = 0; i < 1003; ++i) expected.gradient[row * 1003 + i] *= weights[row];
  }
  const Tensor plain = out(accumulator(), {rows}), target = in(ids, {rows}),
               weight = in(weights, accumulator(), {rows});
  backend().cross_entropy(out(accumulator(), {rows}), in(z, type(), {rows, vocabulary}), target,
                          {.smallest_losses = plain});
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    const Tensor losses = out(accumulator(), {rows}), squares = out(accumulator(), {rows}),
                 smallest = out(accumulator(), {rows}),
                 logits = inout(z, type(), {rows, vocabulary});
    const CrossEntropyOptions options{.gradient_scale = scale,
                                      .z_loss = z_loss,
                                      .weights = weight,
                                      .squared_log_z = squares,
                                      .smallest_losses = smallest};
    const Tensor halves[] = {logits.part(1, 0, half), logits.part(1, half, vocabulary - half)};
    const Tensor partials = out(accumulator(), {2, rows, 3});
    for (std::int64_t i = 0; i < 2 && sharded; ++i)
      backend().cross_entropy_partial(partials.rows(i, 1).view({rows, 3}), halves[i], target,
                                      i * half);
    for (std::int64_t i = 0; i < 2 && sharded; ++i)
      backend().cross_entropy_merged(losses, halves[i], target, partials, i * half, options);
    if (!sharded) backend().cross_entropy(losses, logits, target, options);
    expect_close("losses", read(losses), expected.losses, accumulator(),
                 {32, accumulator(), {32.0}});
    expect_close("squares", read(squares), expected.squared_log_z, accumulator(),
                 {64, accumulator(), {512.0}});
    expect_close("gradient", read(logits), expected.gradient, type(),
                 {64, accumulator(), {8 * scale}});
    expect_close("smallest", read(smallest), read(plain), accumulator(),
                 {16, accumulator(), {16.0}});
  }
}

TEST_P(CrossEntropyTest, NoGradientAskedForLeavesTheLogits) {
  const Values z = activations(11 * 67, 3.0);
  const Ids ids = targets(11, 67);
  const Tensor losses = out(accumulator(), {11});
  backend().cross_entropy(losses, in(z, type(), {11, 67}), in(ids, {11}), {.gradient_scale = 0});
  expect_close("losses", read(losses), reference(z, 67, ids, 0).losses, accumulator(),
               {16, accumulator(), {16.0}});
}

TEST_P(CrossEntropyTest, StridedRows) {
  const Values z = activations(11 * 67, 3.0);
  const Ids ids = targets(11, 67);
  const Tensor losses = out(accumulator(), {11}), logits = allow(inside(type(), 11, 67, 8, 5));
  write(logits, z);
  backend().cross_entropy(losses, logits, in(ids, {11}), {.gradient_scale = 1.0});
  const Expected expected = reference(z, 67, ids, 1.0);
  expect_close("losses", read(losses), expected.losses, accumulator(), {16, accumulator(), {16.0}});
  expect_close("gradient", read(logits), expected.gradient, type(), {32, accumulator(), {4.0}});
}

TEST_P(CrossEntropyTest, LogitsWhoseExponentialsOverflow) {
  const double big = type() == DType::F16 ? 60000 : 1e6;
  Values z = rounded({big, big, 0, -big, -big, -big, 300, 100, 200, -90, -89, 0}, type());
  const Ids ids = {0, 1, 2, 0};
  for (const double scale : {1.0, 1024.0}) {
    const Tensor losses = out(accumulator(), {4}), logits = inout(z, type(), {4, 3});
    backend().cross_entropy(losses, logits, in(ids, {4}), {.gradient_scale = scale});
    const Expected expected = reference(z, 3, ids, scale);
    expect_close("losses", read(losses), expected.losses, accumulator(), {4, accumulator(), {big}});
    const Values equal = read(logits);
    for (std::size_t i = 0; i < 9; ++i)  // halves, zeros and thirds: known exactly
      EXPECT_NEAR(equal[i], expected.gradient[i], 4e-3 * scale) << i;
    for (std::size_t i = 9; i < 12; ++i)
      EXPECT_NEAR(equal[i], expected.gradient[i], 1e-6 * scale) << i;
    finish();
  }
}

// fp16 training scales its loss: the gradients of a large vocabulary must not underflow before they
// are scaled.
TEST_P(CrossEntropyTest, ScaleIsAppliedBeforeRounding) {
  const std::int64_t vocabulary = 20011;
  const double scale = 4096;
  const Values z(static_cast<std::size_t>(vocabulary), 0.5);
  const Tensor losses = out(accumulator(), {1}), logits = inout(z, type(), {1, vocabulary});
  backend().cross_entropy(losses, logits, in(Ids{7}, {1}), {.gradient_scale = scale});
  expect_close("gradient", read(logits.part(1, 8, 20000)),
               Values(20000, scale / static_cast<double>(vocabulary)), type(), {64, accumulator()});
}

// 23 columns sharded over three ranks as 8, 8 and 7. The largest logits of the second row differ so
// much between ranks that exp() underflows.
TEST_P(CrossEntropyTest, ShardsOfTheVocabulary) {
  const std::int64_t rows = 17, vocabulary = 23;
  Values z = activations(rows * vocabulary, 3.0);
  for (std::size_t i = 0; i < 8; ++i) z[23 + i] = rounded({500.0 + z[i]}, type())[0];
  const Ids ids = targets(rows, vocabulary);
  const Values firsts = {0, 8, 16, 23};
  const double z_loss = 0.01;
  for (const double scale : {0.0, 0.25}) {
    SCOPED_TRACE(scale);
    const Expected expected = reference(z, vocabulary, ids, scale, z_loss);
    const Tensor whole = inout(z, type(), {rows, vocabulary}),
                 partials = out(accumulator(), {3, rows, 3}), targets = in(ids, {rows});
    const auto columns = [&](int part) {
      const auto first = static_cast<std::int64_t>(firsts[static_cast<std::size_t>(part)]);
      const auto end = static_cast<std::int64_t>(firsts[static_cast<std::size_t>(part) + 1]);
      return std::pair(whole.part(1, first, end - first), first);
    };
    for (int part = 0; part < 3; ++part) {
      const auto [logits, first] = columns(part);
      backend().cross_entropy_partial(partials.rows(part, 1).view({rows, 3}), logits, targets,
                                      first);
    }
    EXPECT_EQ(read(whole), z);
    for (int part = 0; part < 3; ++part) {
      const auto [logits, first] = columns(part);
      const Tensor losses = out(accumulator(), {rows}), squares = out(accumulator(), {rows});
      backend().cross_entropy_merged(
          losses, logits, targets, partials, first,
          {.gradient_scale = scale, .z_loss = z_loss, .squared_log_z = squares});
      expect_close("losses", read(losses), expected.losses, accumulator(),
                   {16, accumulator(), {512.0}});
      expect_close("squares", read(squares), expected.squared_log_z, accumulator(),
                   {16, accumulator(), {512.0 * 512.0}});
    }
    if (scale == 0)
      EXPECT_EQ(read(whole), z);
    else
      expect_close("gradient", read(whole), expected.gradient, type(),
                   {32, accumulator(), {16 * scale}});
    finish();
  }
}

// The loss of the most likely token: equal, bit for bit, to that of a target with the largest
// logit, and smaller than that of others. Also with the vocabulary sharded as 8, 8 and 7 columns.
TEST_P(CrossEntropyTest, SmallestLosses) {
  const std::int64_t rows = 40, vocabulary = 23;
  const Values z = activations(rows * vocabulary, 3.0);
  Ids ids = targets(rows, vocabulary);
  Values expected(ids.size(), 0.0);
  std::vector<bool> likely(ids.size());
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const auto first = z.begin() + static_cast<std::ptrdiff_t>(row) * vocabulary;
    const auto top = std::max_element(first, first + vocabulary);
    if (row % 4 == 0 && ids[row] >= 0) ids[row] = static_cast<std::int32_t>(top - first);
    if (ids[row] < 0) continue;
    for (auto logit = first; logit != first + vocabulary; ++logit)
      expected[row] += std::exp(*logit - *top);
    expected[row] = std::log(expected[row]);
    likely[row] = first[ids[row]] == *top;
  }
  const auto check = [&](const Values& losses, const Values& smallest) {
    expect_close("smallest", smallest, expected, accumulator(), {16, accumulator(), {16.0}});
    for (std::size_t row = 0; row < ids.size(); ++row)
      if (ids[row] < 0)
        EXPECT_EQ(smallest[row], 0);
      else
        EXPECT_EQ(losses[row] == smallest[row], likely[row])
            << "row " << row << ": " << losses[row] << ", " << smallest[row];
  };
  const Tensor whole = in(z, type(), {rows, vocabulary}), target = in(ids, {rows}),
               losses = out(accumulator(), {rows}), smallest = out(accumulator(), {rows}),
               partials = out(accumulator(), {3, rows, 3});
  backend().cross_entropy(losses, whole, target, {.smallest_losses = smallest});
  check(read(losses), read(smallest));
  for (const std::int64_t first : {0, 8, 16})
    backend().cross_entropy_partial(partials.rows(first / 8, 1).view({rows, 3}),
                                    whole.part(1, first, std::min<std::int64_t>(8, 23 - first)),
                                    target, first);
  for (const std::int64_t first : {0, 8, 16}) {
    const Tensor merged = out(accumulator(), {rows}), least = out(accumulator(), {rows});
    backend().cross_entropy_merged(merged,
                                   whole.part(1, first, std::min<std::int64_t>(8, 23 - first)),
                                   target, partials, first, {.smallest_losses = least});
    check(read(merged), read(least));
  }
}

TEST_P(CrossEntropyTest, PartialSums) {
  const Values z = rounded({1, 3, 2, 5, 5, 5, -1, -2, -4}, type());
  const Tensor partial = out(accumulator(), {3, 3});
  backend().cross_entropy_partial(partial, in(z, type(), {3, 3}), in(Ids{11, 13, -1}, {3}), 10);
  const double e = std::exp(1.0);
  expect_close("partial", read(partial),
               {3, 1 + 1 / e + 1 / (e * e), 3, 5, 3, 0, -1, 1 + 1 / e + 1 / (e * e * e), 0},
               accumulator(), {4, accumulator()});
}

class CrossEntropyGradientTest : public CrossEntropyTest {};
KINTSUGI_ON_EACH_BACKEND(CrossEntropyGradientTest, {DType::F64});

TEST_P(CrossEntropyGradientTest, MatchesTheLoss) {
  const Values z = normal(7 * 31), direction = normal(7 * 31);
  const Ids ids = targets(7, 31);
  const Tensor losses = out(type(), {7}), logits = inout(z, type(), {7, 31}), target = in(ids, {7});
  backend().cross_entropy(losses, logits, target, {.gradient_scale = 0.5});
  const double found = dot(read(logits), direction);
  const auto forward = [&](const Values& moved) {
    write(logits, moved);
    backend().cross_entropy(losses, logits, target, {.gradient_scale = 0});
    return read(losses);
  };
  EXPECT_NEAR(slope_along(forward, z, direction, Values(7, 0.5)), found, 1e-9);
}

TEST_P(CrossEntropyGradientTest, MatchesTheWeightedLoss) {
  const Values z = normal(7 * 31), direction = normal(7 * 31);
  const Ids ids = targets(7, 31);
  const Tensor losses = out(type(), {7}), logits = inout(z, type(), {7, 31}), target = in(ids, {7}),
               weights = in(normal(7), type(), {7});
  backend().cross_entropy(losses, logits, target, {.gradient_scale = 0.5, .weights = weights});
  const double found = dot(read(logits), direction);
  const auto forward = [&](const Values& moved) {
    write(logits, moved);
    backend().cross_entropy(losses, logits, target, {.weights = weights});
    return read(losses);
  };
  EXPECT_NEAR(slope_along(forward, z, direction, Values(7, 0.5)), found, 1e-9);
}

TEST_P(CrossEntropyGradientTest, MatchesTheLossWithZLoss) {
  const Values z = normal(7 * 31), direction = normal(7 * 31);
  const Ids ids = targets(7, 31);
  const Tensor losses = out(type(), {7}), squares = out(type(), {7}),
               logits = inout(z, type(), {7, 31}), target = in(ids, {7});
  backend().cross_entropy(losses, logits, target, {.gradient_scale = 0.5, .z_loss = 0.2});
  const double found = dot(read(logits), direction);
  const auto forward = [&](const Values& moved) {
    write(logits, moved);
    backend().cross_entropy(losses, logits, target, {.squared_log_z = squares});
    Values total = read(losses);
    const Values log_z = read(squares);
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += 0.2 * log_z[i];
    return total;
  };
  EXPECT_NEAR(slope_along(forward, z, direction, Values(7, 0.5)), found, 1e-9);
}

}  // namespace
}  // namespace kintsugi
