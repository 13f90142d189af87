#include "backend/operation_fixture.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

class DropoutTest : public OperationTest {
 protected:
  // Which elements of a (rows, width) tensor are kept.
  std::vector<bool> mask(std::int64_t rows, std::int64_t width, const DropoutOptions& options,
                         DType dtype) {
    const Tensor x = in(Values(static_cast<std::size_t>(rows * width), 1.0), dtype, {rows, width});
    const Tensor y = out(dtype, {rows, width});
    backend().dropout(y, x, options);
    std::vector<bool> kept;
    for (const double value : read(y)) kept.push_back(value != 0);
    return kept;
  }
  std::vector<bool> mask(std::int64_t rows, std::int64_t width, const DropoutOptions& options) {
    return mask(rows, width, options, type());
  }
  static double kept_fraction(const std::vector<bool>& kept) {
    return static_cast<double>(std::count(kept.begin(), kept.end(), true)) /
           static_cast<double>(kept.size());
  }
  // The fraction of elements where two masks, or a mask and itself shifted, agree.
  static double agreement(const std::vector<bool>& a, const std::vector<bool>& b,
                          std::size_t shift = 0) {
    std::size_t same = 0;
    for (std::size_t i = 0; i + shift < a.size(); ++i) same += a[i] == b[i + shift];
    return static_cast<double>(same) / static_cast<double>(a.size() - shift);
  }
};
KINTSUGI_ON_EACH_BACKEND(DropoutTest);

TEST_P(DropoutTest, KeepsTheRightFraction) {
  const std::int64_t rows = 211, width = 307;
  const auto count = static_cast<double>(rows * width);
  for (const double p : {0.1, 0.5, 0.9}) {
    SCOPED_TRACE(p);
    const std::vector<bool> kept = mask(rows, width, {.probability = p, .key = 17});
    EXPECT_NEAR(kept_fraction(kept), 1 - p, 5 * std::sqrt(p * (1 - p) / count));
    // Neighbours along rows and columns, and the halves of the tensor, are independent.
    const double alike = p * p + (1 - p) * (1 - p),
                 deviation = std::sqrt(alike * (1 - alike) / count);
    for (const std::size_t shift : {1u, 2u, 3u, 4u, 307u, 32768u})
      EXPECT_NEAR(agreement(kept, kept, shift), alike, 8 * deviation) << "shift " << shift;
    finish();
  }
}

TEST_P(DropoutTest, SurvivorsAreScaledUpAndAddedToTheResidual) {
  for (const auto& [rows, width] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {17, 64}, {65, 33}})
    for (const double p : {0.0, 0.25, 0.6}) {
      SCOPED_TRACE(fmt::format("rows {} width {} p {}", rows, width, p));
      const DropoutOptions options{.probability = p, .key = 99, .first_row = 5};
      const std::vector<bool> kept = mask(rows, width, options);
      const Values x = activations(rows * width), residual = activations(rows * width);
      Values plain(x.size()), added(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        plain[i] = kept[i] ? x[i] / (1 - p) : 0;
        added[i] = residual[i] + plain[i];
      }
      const Shape shape = {rows, width};
      const Bound bound{4, accumulator(), {8.0}};
      const Tensor y = out(type(), shape), from = in(x, type(), shape),
                   other = in(residual, type(), shape);
      backend().dropout(y, from, options);
      expect_close("y", read(y), plain, type(), bound);
      backend().dropout(y, from, options, other);
      expect_close("y with residual", read(y), added, type(), bound);
      const Tensor x_itself = inout(x, type(), shape),
                   residual_itself = inout(residual, type(), shape);
      backend().dropout(x_itself, x_itself, options);
      expect_close("y = x", read(x_itself), plain, type(), bound);
      backend().dropout(residual_itself, from, options, residual_itself);
      expect_close("y = residual", read(residual_itself), added, type(), bound);
      write(x_itself, x);
      backend().dropout(x_itself, x_itself, options, other);
      expect_close("y = x with residual", read(x_itself), added, type(), bound);
      finish();
    }
}

// A rank with some of the rows gets the same mask for them as the full tensor.
TEST_P(DropoutTest, RowsAreGlobal) {
  for (const std::int64_t width : {1, 7, 64, 129}) {
    SCOPED_TRACE(width);
    const std::vector<bool> whole =
        mask(40, width, {.probability = 0.4, .key = 3, .first_row = 100});
    const auto split = static_cast<std::ptrdiff_t>(13 * width);
    const std::vector<bool> top = mask(13, width, {.probability = 0.4, .key = 3, .first_row = 100});
    const std::vector<bool> rest =
        mask(27, width, {.probability = 0.4, .key = 3, .first_row = 113});
    EXPECT_EQ(std::vector<bool>(whole.begin(), whole.begin() + split), top);
    EXPECT_EQ(std::vector<bool>(whole.begin() + split, whole.end()), rest);
    finish();
  }
}

TEST_P(DropoutTest, FarRowsOfALongRun) {
  const std::int64_t far = std::int64_t{1} << 40;  // element indices beyond 32 bits
  const std::vector<bool> near_mask = mask(64, 129, {.probability = 0.5, .key = 3});
  const std::vector<bool> far_mask =
      mask(64, 129, {.probability = 0.5, .key = 3, .first_row = far});
  EXPECT_NEAR(agreement(near_mask, far_mask), 0.5, 0.03);
  EXPECT_NEAR(kept_fraction(far_mask), 0.5, 0.03);
}

TEST_P(DropoutTest, KeysAreIndependentAndRepeatable) {
  const std::vector<bool> first = mask(100, 101, {.probability = 0.5, .key = 1});
  EXPECT_EQ(mask(100, 101, {.probability = 0.5, .key = 1}), first);
  EXPECT_NEAR(agreement(first, mask(100, 101, {.probability = 0.5, .key = 2})), 0.5, 0.03);
  const std::uint64_t high = std::uint64_t{1} << 32;  // differs in the upper half only
  EXPECT_NEAR(agreement(first, mask(100, 101, {.probability = 0.5, .key = 1 + high})), 0.5, 0.03);
}

// Element e uses word e % 4 of draw e / 4. This must never change: runs resume with the same masks.
TEST_P(DropoutTest, DrawsByGlobalElement) {
  for (const std::int64_t width : {1, 3, 7, 64, 130}) {
    SCOPED_TRACE(width);
    const std::uint64_t key = derive_key(1, 2, 3);
    std::vector<bool> expected;
    for (std::int64_t i = 0; i < 21 * width; ++i) {
      const auto element = static_cast<std::uint64_t>(9 * width + i);
      expected.push_back(Philox::uniform(Philox::draw(key, element / 4)[element % 4]) >= 0.35f);
    }
    EXPECT_EQ(mask(21, width, {.probability = 0.35, .key = key, .first_row = 9}), expected);
    finish();
  }
}

// bf16 drops the same elements as fp32.
TEST_P(DropoutTest, MaskIsTheSameInEveryPrecision) {
  const DropoutOptions options{.probability = 0.3, .key = 8};
  const std::vector<bool> kept = mask(50, 77, options);
  EXPECT_EQ(kept, mask(50, 77, options, DType::F32));
}

// A rank with tokens from several ranges of a sequence gets the same mask for them as the full
// tensor.
TEST_P(DropoutTest, RowsByIndex) {
  for (const std::int64_t width : {7, 64}) {
    SCOPED_TRACE(width);
    const DropoutOptions whole{.probability = 0.4, .key = 3, .first_row = 100};
    const std::vector<bool> kept = mask(40, width, whole);
    Ids rows;
    for (std::int32_t i = 0; i < 13; ++i) rows.push_back(i * 17 % 40);
    DropoutOptions some = whole;
    some.rows = in(rows, {13});
    std::vector<bool> expected;
    for (const std::int32_t row : rows)
      expected.insert(expected.end(), kept.begin() + row * width, kept.begin() + (row + 1) * width);
    EXPECT_EQ(mask(13, width, some), expected);
    finish();
  }
}

// A rank with some of the columns gets the mask of those of the full tensor.
TEST_P(DropoutTest, SomeColumns) {
  for (const auto& [first, columns, width] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{24, 32, 64},
        {3, 8, 15},
        {16, 16, 34}}) {
    SCOPED_TRACE(width);
    DropoutOptions options{.probability = 0.4, .key = 3, .first_row = 7};
    const std::vector<bool> kept = mask(9, width, options);
    std::vector<bool> expected;
    for (std::int64_t row = 0; row < 9; ++row)
      expected.insert(expected.end(), kept.begin() + row * width + first,
                      kept.begin() + row * width + first + columns);
    options.first_column = first;
    options.width = width;
    EXPECT_EQ(mask(9, columns, options), expected);
    finish();
  }
}

// Probability 0 keeps every bit.
TEST_P(DropoutTest, NothingToDrop) {
  const Shape shape = {9, 33};
  const Values x = activations(9 * 33);
  const Tensor y = out(type(), shape), from = in(x, type(), shape);
  backend().dropout(y, from, {.probability = 0, .key = 3, .rows = in(Ids(9, 4), {9})});
  EXPECT_EQ(read(y), x);
}

}  // namespace
}  // namespace kintsugi
