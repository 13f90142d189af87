#pragma once

#include <cmath>

#include "backend/gpu/kernels/attention.cuh"
#include "backend/gpu/kernels/fragments.cuh"

// Common code of attention on the matrix units. A block has a tile of rows that it owns (queries
// or keys) and loops over tiles of the others. Each wave has kRowTiles times 16 of the rows; their
// scores, probabilities and results stay in its registers. Heads are padded with zeros to kDim.

namespace kintsugi::gpu {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// The scores of a head: `scale` times its sums of products, to which ALiBi adds `slope` per
// position in the unit of the sums. Exponentials are powers of 2.
struct Scores {
  __device__ Scores(const Sizes& sizes, int h)
      : log2_scale(static_cast<float>(sizes.scale) * kLog2E),
        slope(sizes.slopes ? sizes.slopes[h] / static_cast<float>(sizes.scale) : 0.0f),
        positions(sizes.mask.key_positions) {}

  __device__ float bias(int key) const { return slope * static_cast<float>(positions.of(key)); }

  float log2_scale, slope;
  const TokenPositions& positions;
};

// Copies rows [first, first + kRows) of a head, with zeros beyond `rows` and `dim`. A thread copies
// the same columns of every kStep-th row.
template <int kThreads, class T, int kRows, int kDim>
__device__ void copy_rows(SharedTile<T, kRows, kDim>& tile, const Heads<const T>& x, int b, int h,
                          int first, int rows, int dim) {
  constexpr int kRowWords = kDim / 8, kStep = kThreads / kRowWords;
  const int thread = threadIdx.x, row0 = thread / kRowWords, d = thread % kRowWords * 8;
  if (kThreads % kRowWords != 0 && row0 >= kStep) return;
  const T* from = x.row(b, first + row0, h) + d;
  const int present = d < dim ? rows - first : 0;
#pragma unroll
  for (int row = row0, i = 0; i < kRows; i += kStep, row += kStep, from += kStep * x.position) {
    if (kRows % kStep != 0 && row >= kRows) break;
    copy_async(tile.at(row, d), row < present ? from : x.data, row < present);
  }
}

// sums += A B^T, of rows of two tiles from a_row and b_row on
template <class F, int kDim, int kRowTiles, int kColumnTiles, class A, class B>
__device__ void multiply_rows(typename F::Sums (&sums)[kRowTiles][kColumnTiles], const A& a,
                              int a_row, const B& b, int b_row, int lane) {
#pragma unroll
  for (int d = 0; d < kDim; d += 16) {
    typename F::Left left[kRowTiles];
    typename F::Right right[kColumnTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) left[r] = F::load_left(a, a_row + 16 * r, d, lane);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) right[n] = F::load_right(b, b_row + 16 * n, d, lane);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) F::multiply_add(sums[r][n], left[r], right[n]);
  }
}

// sums += W X, of weights in registers and the columns of a tile's rows from (row, column) on
template <class F, int kRowTiles, int kInner, int kColumnTiles, class X>
__device__ void multiply_weights(typename F::Sums (&sums)[kRowTiles][kColumnTiles],
                                 typename F::Sums (&weights)[kRowTiles][kInner], const X& x,
                                 int row, int column, int lane) {
#pragma unroll
  for (int n = 0; n < kInner; ++n) {
    typename F::Left left[kRowTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) left[r] = F::left_of(weights[r][n]);
#pragma unroll
    for (int d = 0; d < kColumnTiles; ++d) {
      const typename F::Right right =
          F::load_right_transposed(x, row + 16 * n, column + 16 * d, lane);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) F::multiply_add(sums[r][d], left[r], right);
    }
  }
}

// Calls f(r, i, row) for each row of a lane: row i of its rows of tile r, `row` of the wave.
template <class F, int kRowTiles, class Function>
__device__ void for_rows(int lane, Function&& f) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int i = 0; i < F::kOwnRows; ++i) f(r, i, 16 * r + F::row(lane, i));
}
// Calls f(n, j, column) for each column of a lane.
template <class F, int kColumnTiles, class Function>
__device__ void for_columns(int lane, Function&& f) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
    for (int j = 0; j < F::kOwnColumns; ++j) f(n, j, 16 * n + F::column(lane, j));
}

// Makes the scores of keys that a query does not see -infinity. Rows are queries from query0 on,
// columns are keys from key0 on.
template <class F, int kRowTiles, int kColumnTiles>
__device__ void hide_unseen(typename F::Sums (&s)[kRowTiles][kColumnTiles], const Visible& visible,
                            int query0, int key0, int lane) {
  for_rows<F, kRowTiles>(lane, [&](int r, int i, int row) {
    const KeyRange keys = visible.keys(query0 + row);
    for_columns<F, kColumnTiles>(lane, [&](int n, int j, int column) {
      if (!keys.has(key0 + column)) s[r][n].at(i, j) = -INFINITY;
    });
  });
}

// Adds the ALiBi biases to the scores. Columns are keys from key0 on.
template <class F, int kRowTiles, int kColumnTiles>
__device__ void add_biases(typename F::Sums (&s)[kRowTiles][kColumnTiles], const Scores& scores,
                           int key0, int lane) {
  for_columns<F, kColumnTiles>(lane, [&](int n, int j, int column) {
    const float bias = scores.bias(key0 + column);
    for_rows<F, kRowTiles>(lane, [&](int r, int i, int) { s[r][n].at(i, j) += bias; });
  });
}

// Stores rows from `first` on and columns from `column0` on, within `rows` and `dim`.
template <class F, class T, int kRowTiles, int kColumnTiles>
__device__ void store_rows(const Heads<T>& x, typename F::Sums (&sums)[kRowTiles][kColumnTiles],
                           int b, int h, int first, int rows, int column0, int dim, int lane) {
  for_rows<F, kRowTiles>(lane, [&](int r, int i, int row) {
    if (first + row >= rows) return;
    T* const to = x.row(b, first + row, h);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int j = 0; j < F::kOwnColumns; j += F::kAdjacent) {
        const int d = column0 + 16 * n + F::column(lane, j);
        if (d >= dim) continue;
        Pack<T, F::kAdjacent> pack;
#pragma unroll
        for (int e = 0; e < F::kAdjacent; ++e) pack.v[e] = down<T>(sums[r][n].at(i, j + e));
        store<F::kAdjacent>(to + d, pack);
      }
  });
}

// The operands of a call must suit the copies and stores: whole words of 16 bytes. The largest
// score of a row belongs to its largest sum only for a positive scale.
template <class T, class... Tensors>
bool matrix_operands(const AttentionOptions& options, const Tensors&... operands) {
  return options.scale > 0 &&
         ((operands.extent(3) % 8 == 0 && heads_of<T>(operands).aligned()) && ...);
}

// Returns f.template operator()<T, kDim>() for 16-bit types, false for others.
template <class F>
bool visit_matrix_kernel(const Tensor& q, const Tensor& v, F&& f) {
  const std::int64_t dim = largest_head(q, v);
  const auto with_type = [&]<class T>() {
    if (dim <= 64) return f.template operator()<T, 64>();
    if (dim <= 96) return f.template operator()<T, 96>();
    if (dim <= 128) return f.template operator()<T, 128>();
    return dim <= 256 && f.template operator()<T, 256>();
  };
  if (q.dtype() == DType::BF16) return with_type.template operator()<Bf16>();
  if (q.dtype() == DType::F16) return with_type.template operator()<Half>();
  return false;
}

}  // namespace kintsugi::gpu
