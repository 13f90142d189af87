#pragma once

#include "tensor/tensor.h"

namespace kintsugi {

// The rows of a (rows, width) or (tokens, heads, width) tensor with any outer strides.
template <class T>
struct Rows {
  explicit Rows(const Tensor& x)
      : base(x.as<T>()),
        inner(x.rank() == 3 ? x.extent(1) : 1),
        outer_stride(x.stride(0)),
        inner_stride(x.rank() == 3 ? x.stride(1) : 0),
        count(x.rank() == 3 ? x.extent(0) * x.extent(1) : x.extent(0)),
        width(x.extent(x.rank() - 1)) {
    KINTSUGI_CHECK(x.rank() == 2 || x.rank() == 3, "rows of {}", to_string(x.shape()));
  }
  T* operator[](std::int64_t row) const {
    return inner == 1 ? base + row * outer_stride
                      : base + row / inner * outer_stride + row % inner * inner_stride;
  }
  T* base;
  std::int64_t inner, outer_stride, inner_stride, count, width;
};

}  // namespace kintsugi
