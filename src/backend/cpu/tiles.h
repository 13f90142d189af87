#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cpu/blas.h"
#include "tensor/tensor.h"

namespace kintsugi {

// One head of a (batch, tokens, heads, dim) tensor.
template <class T>
struct HeadView {
  HeadView(const Tensor& x, std::int64_t batch, std::int64_t head)
      : base(x.as<T>() + batch * x.stride(0) + head * x.stride(2)), ld(x.stride(1)) {}
  T* row(std::int64_t token) const { return base + token * ld; }
  T* base;
  std::int64_t ld;
};

// A tile in accumulator precision: the tensor's own memory where it has that precision, otherwise a
// converted copy.
template <class A>
struct Tile {
  const A* data;
  std::int64_t ld;
};

template <class T, class A>
Tile<A> load_tile(const HeadView<T>& head, std::int64_t first, std::int64_t rows, std::int64_t dim,
                  A* buffer) {
  if constexpr (std::is_same_v<T, A>) {
    return {head.row(first), head.ld};
  } else {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < dim; ++j)
        buffer[i * dim + j] = static_cast<A>(head.row(first + i)[j]);
    return {buffer, dim};
  }
}

// c = alpha * op(a) op(b) + beta * c
template <class A>
void tile_matmul(A* c, std::int64_t ldc, std::int64_t m, std::int64_t n, std::int64_t k,
                 const Tile<A>& a, bool transpose_a, const Tile<A>& b, bool transpose_b, A alpha,
                 A beta) {
  gemm(GemmArguments<A>{.transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .m = m,
                        .n = n,
                        .k = k,
                        .alpha = alpha,
                        .a = a.data,
                        .lda = a.ld,
                        .b = b.data,
                        .ldb = b.ld,
                        .beta = beta,
                        .c = c,
                        .ldc = ldc});
}

}  // namespace kintsugi
