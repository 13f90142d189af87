// Copies, casts, fills and additions.
#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

class MemoryTest : public OperationTest {};
KINTSUGI_ON_EACH_BACKEND(MemoryTest);

TEST_P(MemoryTest, CopyConvertsToAndFromEveryPrecision) {
  for (const DType other : GetParam().backend.precisions)
    for (const std::int64_t count : {1, 7, 64, 1001, 70001}) {
      SCOPED_TRACE(fmt::format("{} elements, {}", count, to_string(other)));
      const Values x = rounded(normal(count, 3.0), other);
      const Tensor converted = out(type(), {count}), back = out(other, {count});
      backend().copy(converted, in(x, other, {count}));
      EXPECT_EQ(read(converted), rounded(x, type()));
      backend().copy(back, converted);
      EXPECT_EQ(read(back), rounded(rounded(x, type()), other));
      finish();
    }
}

class RoundingTest : public OperationTest {};
KINTSUGI_ON_EACH_BACKEND(RoundingTest, {DType::BF16, DType::F16});

TEST_P(RoundingTest, CopyRoundsToNearestEvenAndKeepsSpecialNumbers) {
  const double bit = 2 * unit_roundoff(type());  // from 1 to the next number
  const Values x = {1 + bit / 2, 1 + 1.5 * bit, 1 + 0.51 * bit, -1 - bit / 2, 0.0,
                    -0.0,        INFINITY,      -INFINITY,      NAN};
  const Values expected = {1, 1 + 2 * bit, 1 + bit, -1, 0, 0, INFINITY, -INFINITY};
  const Tensor y = out(type(), {9});
  backend().copy(y, in(x, DType::F32, {9}));
  Values result = read(y);
  EXPECT_TRUE(std::isnan(result.back()));
  result.pop_back();
  EXPECT_EQ(result, expected);
  EXPECT_TRUE(std::signbit(result[5]));
}

class Fp16RangeTest : public OperationTest {};
KINTSUGI_ON_EACH_BACKEND(Fp16RangeTest, {DType::F16});

TEST_P(Fp16RangeTest, Copy) {
  // 65519 rounds to the largest number, 65520 to infinity; 2^-25 is half of the smallest number and
  // rounds to even.
  const Values x = {65519, 65520, -1e9, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1.ff8p-15, 0x1.ffcp-15};
  const Tensor y = out(type(), {8});
  backend().copy(y, in(x, DType::F32, {8}));
  EXPECT_EQ(read(y),
            (Values{65504, INFINITY, -INFINITY, 0x1p-24, 0, 0x1p-24, 0x1.ff8p-15, 0x1p-14}));
}

TEST_P(MemoryTest, CopyOfStridedRows) {
  const Values x = activations(13 * 21);
  const Tensor from = inside(type(), 13, 21, 8, 3), to = allow(inside(accumulator(), 13, 21, 2, 6));
  write(from, x);
  backend().copy(to, from);
  EXPECT_EQ(read(to), x);
  const Tensor heads = allow(inside(type(), 13, 21, 7, 14).split_last(7));
  backend().copy(heads, from.split_last(7));
  EXPECT_EQ(read(heads), x);
}

// Heads by rank, as an all-to-all sends them: both tensors have gaps and other orders.
TEST_P(MemoryTest, CopyOfFourDimensions) {
  constexpr std::int64_t tokens = 9, ranks = 3, heads = 2;
  for (const std::int64_t dim : {5, 16}) {
    const Values x = activations(tokens * ranks * heads * dim);
    const Tensor from = inside(type(), tokens, ranks * heads * dim, 8, 16).split_last(dim),
                 to = allow(buffer(type(), {ranks, tokens, heads, dim}));
    write(from, x);
    backend().copy(to, from.transpose(0, 1).split_first(heads).transpose(1, 2));
    Values expected;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      for (std::int64_t token = 0; token < tokens; ++token) {
        const auto first = x.begin() + (token * ranks + rank) * heads * dim;
        expected.insert(expected.end(), first, first + heads * dim);
      }
    EXPECT_EQ(read(to), expected);
    for (const std::int64_t gap : {2, 8}) {  // rows of 16 bytes each, or not
      const Tensor back =
          allow(inside(type(), tokens, ranks * heads * dim, gap, 8).split_last(dim));
      backend().copy(back.transpose(0, 1).split_first(heads).transpose(1, 2), to);
      EXPECT_EQ(read(back), x);
    }
  }
}

// Heads that share elements: a copy to each head, and the sum over the heads.
TEST_P(MemoryTest, HeadsOfATokenAreCopiedAndSummed) {
  constexpr std::int64_t tokens = 21, heads = 5, dim = 12;
  const Values x = activations(tokens * dim);
  const Tensor shared = inside(type(), tokens, dim, 4, 8),
               all = allow(buffer(type(), {tokens, heads, dim + 3}).part(2, 3, dim));
  write(shared, x);
  backend().copy(all, shared.repeat(1, heads));
  Values expected;
  for (std::int64_t row = 0; row < tokens * heads; ++row)
    expected.insert(expected.end(), x.begin() + row / heads * dim,
                    x.begin() + (row / heads + 1) * dim);
  EXPECT_EQ(read(all), expected);

  const Values y = activations(tokens * heads * dim);
  write(all, y);
  Values sums(x.size(), 0.0), sizes = sums;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t at = i / (heads * dim) * dim + i % dim;
    sums[at] += y[i];
    sizes[at] += std::abs(y[i]);
  }
  const Tensor sum = allow(inside(type(), tokens, dim, 2, 6));
  backend().sum_heads(sum, all);
  expect_close("sum", read(sum), sums, type(), {heads, accumulator(), sizes});
  finish();
}

TEST_P(MemoryTest, Fill) {
  for (const std::int64_t count : {1, 33, 40001}) {
    const Tensor x = out(type(), {count});
    for (const double value : {0.0, 1.0, -0.3}) {
      backend().fill(x, value);
      EXPECT_EQ(read(x), rounded(Values(static_cast<std::size_t>(count), value), type()));
    }
    finish();
  }
  const Tensor whole = in(Values(30, 2.0), type(), {5, 6});
  backend().fill(allow(whole.rows(1, 2)), 7.0);
  EXPECT_EQ(read(whole.rows(1, 2)), Values(12, 7.0));
}

TEST_P(MemoryTest, Add) {
  for (const std::int64_t count : {1, 17, 1003, 50000}) {
    const Values x = activations(count), y = activations(count);
    Values expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = x[i] + y[i];
    for (const DType total : {type(), accumulator()}) {
      const Tensor sum = inout(y, total, {count});
      backend().add(sum, in(x, type(), {count}));
      expect_close("y", read(sum), expected, total, {0, total});
      finish();
    }
  }
}

TEST_P(MemoryTest, UploadAndDownloadKeepEveryBit) {
  std::vector<std::uint8_t> bytes(4099), back(4099, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37);
  const Tensor x = out(DType::U8, {4099});
  backend().upload(x, bytes.data());
  backend().download(back.data(), x);
  EXPECT_EQ(back, bytes);
}

}  // namespace
}  // namespace kintsugi
