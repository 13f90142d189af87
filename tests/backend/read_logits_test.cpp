#include <limits>
#include <numeric>

#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class ReadLogitsTest : public OperationTest {
 protected:
  // Reads rows of `columns` logits and checks everything that is found in them.
  void check(const Values& logits, std::int64_t rows, std::int64_t columns, std::int64_t n,
             const Ids& targets, std::int64_t first_column) {
    SCOPED_TRACE(fmt::format("rows {} columns {} n {} first {}", rows, columns, n, first_column));
    const Tensor x = inside(type(), rows, columns, 8, 8);
    write(x, logits);
    const Tensor values = allow(inside(accumulator(), rows, n, 1, 2)),
                 ids = allow(inside(DType::I32, rows, n, 2, 1)),
                 log_sum = out(accumulator(), {rows}),
                 chosen = targets.empty() ? Tensor() : out(accumulator(), {rows});
    backend().read_logits(values, ids, log_sum, chosen, x,
                          targets.empty() ? Tensor() : in(targets, {rows}), first_column);
    const Values found = read(values), sums = read(log_sum);
    const Ids columns_found = read_ids(ids);
    const Values picked = targets.empty() ? Values() : read(chosen);
    for (std::int64_t row = 0; row < rows; ++row) {
      const double* begin = &logits[static_cast<std::size_t>(row * columns)];
      if (std::any_of(begin, begin + columns, [](double v) { return std::isnan(v); })) {
        EXPECT_TRUE(std::isnan(sums[static_cast<std::size_t>(row)])) << "row " << row;
        continue;
      }
      std::vector<std::int64_t> order(static_cast<std::size_t>(columns));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::int64_t a, std::int64_t b) { return begin[a] > begin[b]; });
      long double sum = 0;  // thousands of terms: double would lose digits
      for (std::int64_t j = 0; j < columns; ++j) sum += std::exp(begin[j] - begin[order[0]]);
      const double expected = begin[order[0]] + std::log(static_cast<double>(sum));
      EXPECT_NEAR(sums[static_cast<std::size_t>(row)], expected,
                  16 * unit_roundoff(accumulator()) * (1 + std::abs(expected)))
          << "row " << row;
      for (std::int64_t i = 0; i < n; ++i) {
        const std::size_t at = static_cast<std::size_t>(row * n + i);
        ASSERT_EQ(columns_found[at], order[static_cast<std::size_t>(i)] + first_column)
            << "row " << row << ", value " << i;
        ASSERT_EQ(found[at], begin[order[static_cast<std::size_t>(i)]]);
      }
      if (targets.empty()) continue;
      const std::int64_t column = targets[static_cast<std::size_t>(row)] - first_column;
      EXPECT_EQ(picked[static_cast<std::size_t>(row)],
                column >= 0 && column < columns ? begin[column] : -kInfinite);
    }
    finish();
  }
  // Through fp64, which holds every int32.
  Ids read_ids(Tensor view) {
    Ids result;
    for (std::int64_t row = 0; row < view.extent(0); ++row) {
      Ids line(static_cast<std::size_t>(view.extent(1)));
      backend().download(line.data(), view.select(0, row));
      result.insert(result.end(), line.begin(), line.end());
    }
    return result;
  }
};
KINTSUGI_ON_EACH_BACKEND(ReadLogitsTest);

TEST_P(ReadLogitsTest, LargestLogitsAndTheirSum) {
  for (const auto& [columns, n] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                   {7, 7},
                                   {64, 1},
                                   {1000, 5},
                                   {4097, 33},
                                   {8200, 32},
                                   {20000, 20}}) {
    const Ids targets = integers(3, 0, static_cast<std::int32_t>(columns) - 1);
    check(activations(3 * columns, 4.0), 3, columns, n, targets, 0);
  }
}

TEST_P(ReadLogitsTest, TheFirstOfEquals) {
  Values logits(2 * 9000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<double>(i % 7 + i / 4500);
  check(logits, 2, 9000, 32, {}, 0);
  check(Values(5000, 0.25), 1, 5000, 40, {}, 0);  // all are equal
  Values rising(6000);
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<double>(i / 64);
  check(rising, 1, 6000, 8, {}, 0);
}

// With tensor parallelism a rank has the columns from first_column on.
TEST_P(ReadLogitsTest, ShardOfTheVocabulary) {
  check(activations(4 * 300), 4, 300, 6, {1199, 1200, 1499, 1500}, 1200);
}

TEST_P(ReadLogitsTest, ForbiddenTokensAndNaN) {
  Values logits = activations(3 * 5000);
  for (std::size_t i = 0; i < 5000; ++i)
    if (i % 1000 != 3) logits[i] = -kInfinite;  // 5 are left
  logits[5000 + 4321] = std::numeric_limits<double>::quiet_NaN();
  check(logits, 3, 5000, 8, {0, 1, 2}, 0);
}

}  // namespace
}  // namespace kintsugi
