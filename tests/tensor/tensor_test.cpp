#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace kintsugi {
namespace {

// Every element holds its own index, so that the values of a view are its addresses.
class TensorView : public testing::Test {
 protected:
  TensorView() : memory_(1000) { std::iota(memory_.begin(), memory_.end(), 0); }
  Tensor tensor(Shape shape) { return Tensor(memory_.data(), DType::I32, shape); }

  static std::int32_t at(const Tensor& x, std::initializer_list<std::int64_t> index) {
    std::int64_t offset = 0;
    int i = 0;
    for (const std::int64_t position : index) offset += position * x.stride(i++);
    return x.as<std::int32_t>()[offset];
  }

  std::vector<std::int32_t> memory_;
};

TEST_F(TensorView, WholeTensorsAreRowMajor) {
  const Tensor x = tensor({2, 3, 4, 5});
  for (std::int64_t a = 0; a < 2; ++a)
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t c = 0; c < 4; ++c)
        for (std::int64_t d = 0; d < 5; ++d)
          EXPECT_EQ(at(x, {a, b, c, d}), ((a * 3 + b) * 4 + c) * 5 + d);
  EXPECT_EQ(x.elements(), 120);
  EXPECT_EQ(x.bytes(), 480u);
  EXPECT_EQ(x.rank(), 4);
  EXPECT_TRUE(x.contiguous());
}

TEST_F(TensorView, NoneAndScalars) {
  EXPECT_FALSE(Tensor());
  const Tensor scalar = tensor({});
  EXPECT_TRUE(scalar);
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_TRUE(scalar.contiguous());
  EXPECT_EQ(tensor({0, 5}).elements(), 0);
}

TEST_F(TensorView, ViewKeepsTheElements) {
  const Tensor x = tensor({6, 4}), y = x.view({2, 3, 4}), z = x.view({24});
  EXPECT_EQ(at(y, {1, 2, 3}), 23);
  EXPECT_EQ(at(y, {1, 0, 1}), at(x, {3, 1}));
  EXPECT_EQ(at(z, {13}), 13);
  EXPECT_EQ(y.data(), x.data());
  EXPECT_THROW(x.view({5, 5}), Failure);
  EXPECT_THROW(x.part(1, 0, 2).view({12}), Failure) << "not contiguous";
}

TEST_F(TensorView, RowsAndRanges) {
  const Tensor x = tensor({6, 4, 3});
  const Tensor rows = x.rows(2, 3);
  EXPECT_EQ(rows.shape(), (Shape{3, 4, 3}));
  EXPECT_TRUE(rows.contiguous());
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(at(rows, {i, 1, 2}), at(x, {i + 2, 1, 2}));

  const Tensor middle = x.part(1, 1, 2);
  EXPECT_EQ(middle.shape(), (Shape{6, 2, 3}));
  EXPECT_FALSE(middle.contiguous());
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 2; ++j)
      for (std::int64_t k = 0; k < 3; ++k) EXPECT_EQ(at(middle, {i, j, k}), at(x, {i, j + 1, k}));

  EXPECT_EQ(at(x.part(2, 1, 2).part(0, 3, 1), {0, 2, 1}), at(x, {3, 2, 2}));
  EXPECT_EQ(x.rows(6, 0).elements(), 0);
  EXPECT_THROW(x.rows(5, 2), Failure);
  EXPECT_THROW(x.rows(-1, 2), Failure);
  EXPECT_THROW(x.rows(1, -1), Failure);
  EXPECT_THROW(x.part(3, 0, 1), Failure);
}

TEST_F(TensorView, RangesUseTheSizeOfTheirType) {
  const auto distance = [this](DType dtype) {
    const Tensor x(memory_.data(), dtype, {8, 4});
    return static_cast<std::byte*>(x.rows(3, 1).data()) - static_cast<std::byte*>(x.data());
  };
  EXPECT_EQ(distance(DType::F64), 96);
  EXPECT_EQ(distance(DType::F32), 48);
  EXPECT_EQ(distance(DType::BF16), 24);
  EXPECT_EQ(distance(DType::U8), 12);
}

// Splits a packed projection into heads: a column range, then heads.
TEST_F(TensorView, SplitLast) {
  const Tensor x = tensor({5, 18});
  const Tensor heads = x.part(1, 6, 12).split_last(4);
  EXPECT_EQ(heads.shape(), (Shape{5, 3, 4}));
  EXPECT_FALSE(heads.contiguous());
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t h = 0; h < 3; ++h)
      for (std::int64_t d = 0; d < 4; ++d)
        EXPECT_EQ(at(heads, {i, h, d}), at(x, {i, 6 + 4 * h + d}));
  EXPECT_TRUE(x.split_last(9).contiguous());
  EXPECT_THROW(x.split_last(5), Failure);
  EXPECT_THROW(tensor({2, 2, 2, 2}).split_last(1), Failure) << "at most four dimensions";
}

TEST_F(TensorView, SplitFirstAndFlattenFirst) {
  const Tensor x = tensor({6, 20}).part(1, 4, 8);
  const Tensor split = x.split_first(3);
  EXPECT_EQ(split.shape(), (Shape{2, 3, 8}));
  for (std::int64_t s = 0; s < 2; ++s)
    for (std::int64_t t = 0; t < 3; ++t)
      for (std::int64_t k = 0; k < 8; ++k) EXPECT_EQ(at(split, {s, t, k}), at(x, {3 * s + t, k}));

  const Tensor joined = split.flatten_first();
  EXPECT_EQ(joined.shape(), x.shape());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(joined.stride(i), x.stride(i));
  EXPECT_EQ(joined.data(), x.data());

  EXPECT_THROW(x.split_first(4), Failure);
  EXPECT_THROW(tensor({2, 2, 2, 2}).split_first(1), Failure);
  EXPECT_THROW(tensor({4}).flatten_first(), Failure);
  EXPECT_THROW(split.part(1, 0, 2).flatten_first(), Failure)
      << "there is a gap between the outer rows";
  const Tensor one = split.part(0, 1, 1).part(1, 0, 2).flatten_first();
  EXPECT_EQ(one.shape(), (Shape{2, 8}));
  EXPECT_EQ(at(one, {1, 3}), at(split, {1, 1, 3}));
}

TEST_F(TensorView, SelectsAndTransposesOuterDimensions) {
  const Tensor x = tensor({2, 3, 4, 5});
  const Tensor chosen = x.select(2, 1), turned = x.transpose(0, 2);
  EXPECT_EQ(chosen.shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(turned.shape(), (Shape{4, 3, 2, 5}));
  EXPECT_EQ(at(chosen, {1, 2, 3}), at(x, {1, 2, 1, 3}));
  EXPECT_EQ(at(turned, {3, 2, 1, 4}), at(x, {1, 2, 3, 4}));
  EXPECT_THROW(x.select(3, 0), Failure);
  EXPECT_THROW(x.select(0, 2), Failure);
  EXPECT_THROW(x.transpose(0, 3), Failure);
}

TEST_F(TensorView, RepeatsElementsInANewDimension) {
  const Tensor x = tensor({3, 5}), heads = x.repeat(1, 4);
  EXPECT_EQ(heads.shape(), (Shape{3, 4, 5}));
  EXPECT_EQ(at(heads, {2, 0, 3}), at(x, {2, 3}));
  EXPECT_EQ(at(heads, {2, 3, 3}), at(x, {2, 3}));
  EXPECT_FALSE(heads.contiguous());
  EXPECT_THROW(x.repeat(2, 4), Failure);
  EXPECT_THROW(tensor({2, 2, 2, 2}).repeat(0, 2), Failure);
}

TEST_F(TensorView, ContiguityIgnoresExtentsOfOne) {
  EXPECT_TRUE(tensor({1, 6}).part(1, 0, 3).contiguous());
  EXPECT_TRUE(tensor({4, 6}).rows(2, 1).part(1, 2, 2).contiguous());
  EXPECT_FALSE(tensor({2, 6}).part(1, 0, 3).contiguous());
  EXPECT_FALSE(tensor({4, 3, 2}).part(1, 0, 1).contiguous());
}

TEST_F(TensorView, TheTypeIsChecked) {
  const Tensor x = tensor({3});
  EXPECT_NO_THROW(x.as<std::int32_t>());
  EXPECT_THROW(x.as<float>(), Failure);
  EXPECT_THROW(x.as<std::int64_t>(), Failure);
}

TEST(Shapes, TextElementsAndLimits) {
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{7}), "[7]");
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ((Shape{2, 3, 4}).elements(), 24);
  EXPECT_EQ((Shape{1'000'000, 1'000'000}).elements(), 1'000'000'000'000);
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  EXPECT_THROW((Shape{1, 2, 3, 4, 5}), Failure);
  Shape full = {1, 2, 3, 4};
  EXPECT_THROW(full.append(5), Failure);
}

}  // namespace
}  // namespace kintsugi
