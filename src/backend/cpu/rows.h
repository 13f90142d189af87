#pragma once

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"
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

// ---- of a row of width elements, for the norms
template <class T>
Accumulator<T> sum_of_squares(const T* x, std::int64_t width) {
  using A = Accumulator<T>;
  A squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < width; ++i) {
    const A value = static_cast<A>(x[i]);
    squares += value * value;
  }
  return squares;
}

// 1 / sqrt(mean of the squares + eps)
template <class A>
A rstd_of(A squares, std::int64_t width, double eps) {
  return A(1) / std::sqrt(squares / static_cast<A>(width) + static_cast<A>(eps));
}

inline constexpr std::int64_t kReductionBlocks = 16;

template <class A, class F>
void CpuBackend::reduce_columns(std::int64_t rows, std::int64_t width, int outputs,
                                A* const* targets, const F& sum_rows) {
  const std::int64_t blocks = std::clamp<std::int64_t>(rows / 8, 1, kReductionBlocks);
  const std::int64_t sums = outputs * width;
  const std::size_t bytes = static_cast<std::size_t>(blocks * sums) * sizeof(A);
  if (partials_.size() < bytes) partials_.resize(bytes);
  A* partials = reinterpret_cast<A*>(partials_.data());
  pool_.run(blocks, [&](std::int64_t block, int) {
    A* partial = partials + block * sums;
    std::fill(partial, partial + sums, A(0));
    sum_rows(rows * block / blocks, rows * (block + 1) / blocks, partial);
  });
  for (std::int64_t block = 0; block < blocks; ++block)
    for (int output = 0; output < outputs; ++output) {
      const A* partial = partials + block * sums + output * width;
      A* target = targets[output];
      if (target == nullptr) continue;
      for (std::int64_t i = 0; i < width; ++i) target[i] += partial[i];
    }
}

}  // namespace kintsugi
