#include "tensor/tensor.h"

#include <fmt/format.h>

#include <utility>

namespace kintsugi {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

bool Tensor::contiguous() const {
  std::int64_t stride = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != stride) return false;
    stride *= shape_[i];
  }
  return true;
}

Tensor Tensor::view(Shape shape) const {
  KINTSUGI_CHECK(contiguous() && shape.elements() == elements(), "cannot view {} as {}",
                 to_string(shape_), to_string(shape));
  return Tensor(data_, dtype_, shape);
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const { return part(0, begin, count); }

Tensor Tensor::part(int i, std::int64_t begin, std::int64_t count) const {
  KINTSUGI_CHECK(i < rank() && begin >= 0 && count >= 0 && begin + count <= shape_[i],
                 "range [{}, {}) of dimension {} of {}", begin, begin + count, i,
                 to_string(shape_));
  Tensor result = *this;
  result.data_ = static_cast<std::byte*>(data_) +
                 begin * strides_[i] * static_cast<std::int64_t>(size_of(dtype_));
  result.shape_[i] = count;
  return result;
}

Tensor Tensor::select(int d, std::int64_t i) const {
  KINTSUGI_CHECK(d < rank() - 1, "no dimension {} to select from in {}", d, to_string(shape_));
  Tensor result = part(d, i, 1);
  result.shape_ = {};
  for (int from = 0; from < rank(); ++from) {
    if (from == d) continue;
    result.strides_[result.shape_.rank()] = strides_[from];
    result.shape_.append(shape_[from]);
  }
  return result;
}

Tensor Tensor::transpose(int i, int j) const {
  KINTSUGI_CHECK(i < rank() - 1 && j < rank() - 1, "cannot transpose {} and {} of {}", i, j,
                 to_string(shape_));
  Tensor result = *this;
  std::swap(result.shape_[i], result.shape_[j]);
  std::swap(result.strides_[i], result.strides_[j]);
  return result;
}

Tensor Tensor::repeat(int d, std::int64_t count) const {
  KINTSUGI_CHECK(d < rank(), "dimension {} of {}", d, to_string(shape_));
  Tensor result = *this;
  result.shape_.append(0);
  for (int i = rank(); i > d; --i) {
    result.shape_[i] = shape_[i - 1];
    result.strides_[i] = strides_[i - 1];
  }
  result.shape_[d] = count;
  result.strides_[d] = 0;
  return result;
}

Tensor Tensor::split_last(std::int64_t inner) const {
  const int last = rank() - 1;
  KINTSUGI_CHECK(last >= 0 && inner > 0 && shape_[last] % inner == 0,
                 "cannot split the last dimension of {} by {}", to_string(shape_), inner);
  Tensor result = *this;
  result.shape_[last] = shape_[last] / inner;
  result.strides_[last] = inner;
  result.shape_.append(inner);
  result.strides_[last + 1] = 1;
  return result;
}

Tensor Tensor::join_last() const {
  const int last = rank() - 1;
  KINTSUGI_CHECK(last >= 1 && strides_[last] == 1 && strides_[last - 1] == shape_[last],
                 "cannot join the last dimensions of {}", to_string(shape_));
  Tensor result = *this;
  result.shape_ = {};
  for (int i = 0; i < last - 1; ++i) result.shape_.append(shape_[i]);
  result.shape_.append(shape_[last - 1] * shape_[last]);
  result.strides_[last - 1] = 1;
  return result;
}

Tensor Tensor::split_first(std::int64_t inner) const {
  KINTSUGI_CHECK(rank() >= 1 && rank() < kMaxRank && inner > 0 && shape_[0] % inner == 0,
                 "cannot split the first dimension of {} by {}", to_string(shape_), inner);
  Tensor result = *this;
  result.shape_ = {shape_[0] / inner, inner};
  result.strides_ = {strides_[0] * inner, strides_[0]};
  for (int i = 1; i < rank(); ++i) {
    result.shape_.append(shape_[i]);
    result.strides_[i + 1] = strides_[i];
  }
  return result;
}

Tensor Tensor::flatten_first() const {
  KINTSUGI_CHECK(rank() >= 2 && (shape_[0] == 1 || strides_[0] == shape_[1] * strides_[1]),
                 "cannot join the first dimensions of {}", to_string(shape_));
  Tensor result = *this;
  result.shape_ = {shape_[0] * shape_[1]};
  result.strides_ = {strides_[1]};
  for (int i = 2; i < rank(); ++i) {
    result.shape_.append(shape_[i]);
    result.strides_[i - 1] = strides_[i];
  }
  return result;
}

namespace {

constexpr std::int64_t kAlignment = 256;
std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::int64_t quantized_bytes(std::int64_t rows, std::int64_t columns) {
  return aligned(rows * columns) + aligned(rows * static_cast<std::int64_t>(sizeof(float)));
}

Quantized quantized_in(const Tensor& memory, std::int64_t rows, std::int64_t columns,
                       bool one_scale) {
  KINTSUGI_CHECK(memory.bytes() >= static_cast<std::size_t>(quantized_bytes(rows, columns)),
                 "{} bytes are too few for {} x {} in fp8", memory.bytes(), rows, columns);
  auto* begin = static_cast<std::byte*>(memory.data());
  return {Tensor(begin, DType::F8, {rows, columns}),
          Tensor(begin + aligned(rows * columns), DType::F32, {one_scale ? 1 : rows})};
}

}  // namespace kintsugi
