#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/error.h"
#include "tensor/dtype.h"

namespace kintsugi {

inline constexpr int kMaxRank = 4;

// Up to four extents. A scalar has rank 0 and one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    KINTSUGI_CHECK(extents.size() <= kMaxRank, "a shape has at most {} dimensions", kMaxRank);
    for (const std::int64_t extent : extents) extents_[rank_++] = extent;
  }
  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return extents_[i]; }
  std::int64_t& operator[](int i) { return extents_[i]; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= extents_[i];
    return n;
  }
  void append(std::int64_t extent) {
    KINTSUGI_CHECK(rank_ < kMaxRank, "a shape has at most {} dimensions", kMaxRank);
    extents_[rank_++] = extent;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // [2, 3]

// A view: address, type, extents and strides (in elements). It owns no memory and is cheap to copy.
// The last dimension is always contiguous. A default-constructed Tensor is empty and stands for an
// omitted optional operand.
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {
    std::int64_t stride = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      strides_[i] = stride;
      stride *= shape[i];
    }
  }

  explicit operator bool() const { return data_ != nullptr; }
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t extent(int i) const { return shape_[i]; }
  std::int64_t stride(int i) const { return strides_[i]; }
  int rank() const { return shape_.rank(); }
  std::int64_t elements() const { return shape_.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }
  bool contiguous() const;

  template <class T>
  T* as() const {
    KINTSUGI_CHECK(dtype_ == DTypeOf<T>::value, "tensor holds {}, but {} was requested",
                   to_string(dtype_), to_string(DTypeOf<T>::value));
    return static_cast<T*>(data_);
  }

  // The same elements with other extents; contiguous tensors only.
  Tensor view(Shape shape) const;
  // Rows [begin, begin + count) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  // The range [begin, begin + count) of dimension i, with the same strides.
  Tensor part(int i, std::int64_t begin, std::int64_t count) const;
  // Index i of dimension d. Removes that dimension; the others keep their strides.
  Tensor select(int d, std::int64_t i) const;
  // Swaps dimensions i and j; neither may be the last one.
  Tensor transpose(int i, int j) const;
  // Inserts dimension d, of `count` times the same elements: only to be read.
  Tensor repeat(int d, std::int64_t count) const;
  // Joins the last two dimensions, (…, a, b) to (…, a b); the rows of length b must be adjacent.
  Tensor join_last() const;
  // Splits the last dimension into (outer, inner), keeping the strides of the others.
  Tensor split_last(std::int64_t inner) const;
  // Splits the first dimension into (outer, inner), keeping the strides of the others.
  Tensor split_first(std::int64_t inner) const;
  // Joins the first two dimensions, the inverse of split_first; the outer stride must be inner
  // extent x inner stride (or the outer extent 1).
  Tensor flatten_first() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::F32;
  Shape shape_;
  std::array<std::int64_t, kMaxRank> strides_{};
};

inline constexpr std::int64_t kFp8Multiple = 16;  // of the sizes of an fp8 matmul

// A matrix (rows, columns) in fp8 with a scale for each row, or one for all: element (i, j) is
// values(i, j) * scales(i). Owns no memory, as Tensor.
struct Quantized {
  Tensor values;  // (rows, columns), fp8, contiguous
  Tensor scales;  // (rows) or (1), fp32

  explicit operator bool() const { return static_cast<bool>(values); }
  std::int64_t rows() const { return values.extent(0); }
  std::int64_t columns() const { return values.extent(1); }
  // Rows [first, first + count), which have scales of their own.
  Quantized part(std::int64_t first, std::int64_t count) const {
    return {values.rows(first, count), scales.rows(first, count)};
  }
};

// The largest magnitudes of the rows and columns of a matrix, as the bits of fp32 numbers, whose
// order is theirs: who writes the matrix can find them for who quantizes it.
struct Maxima {
  Tensor rows, columns;  // (rows), (columns), int32
  explicit operator bool() const { return static_cast<bool>(rows); }
};

// A Quantized in `memory` (bytes), aligned to 256 bytes: values, then scales.
std::int64_t quantized_bytes(std::int64_t rows, std::int64_t columns);
Quantized quantized_in(const Tensor& memory, std::int64_t rows, std::int64_t columns,
                       bool one_scale);

}  // namespace kintsugi
