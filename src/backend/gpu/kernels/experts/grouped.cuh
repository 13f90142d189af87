#pragma once

#include <algorithm>
#include <bit>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

// Common code of the matmuls of experts: their operands, and which tile of which expert a block
// computes. The number of rows of an expert is known on the device only. Tiles and the order of the
// sums are the same for any number of rows, so that a row's result does not depend on the others.

namespace kintsugi::gpu {

// Divides numbers from 0 to 2^31 - 1 by a constant, without a division.
struct Divisor {
  explicit Divisor(std::int64_t divisor)
      : shift(static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(divisor - 1)))),
        multiplier(static_cast<unsigned>(
            ((std::uint64_t{1} << 32) *
             ((std::uint64_t{1} << shift) - static_cast<std::uint64_t>(divisor))) /
                static_cast<std::uint64_t>(divisor) +
            1)) {}
  __device__ int divide(int x) const {
    const unsigned n = static_cast<unsigned>(x);
    const auto high = static_cast<unsigned>(static_cast<std::uint64_t>(n) * multiplier >> 32);
    return static_cast<int>((high + n) >> shift);
  }
  unsigned shift, multiplier;
};

// ExpertRows on the device.
struct GroupedRows {
  explicit GroupedRows(const ExpertRows& x)
      : rows(data_of<std::int32_t>(x.rows)),
        offsets(data_of<std::int32_t>(x.offsets)),
        experts(static_cast<int>(x.offsets.elements()) - 1),
        choices(x.choices) {}
  // The row of an operand that has a row per token, or one per row.
  __device__ int source(int row, bool tokens) const {
    return tokens ? choices.divide(rows[row]) : row;
  }
  const std::int32_t *rows, *offsets;
  int experts;
  Divisor choices;
};

inline int stride_of(const Tensor& x, int i) {
  KINTSUGI_CHECK(x.stride(i) < (std::int64_t{1} << 31), "grouped matmul of {}",
                 to_string(x.shape()));
  return static_cast<int>(x.stride(i));
}

// c [+]= scale a op(b[expert]); strides are those of rows. Operands in fp8 have scales of rows.
template <class T, class Element = T>
struct GroupedMatmul {
  static constexpr bool kHasScales = std::is_same_v<Element, Fp8>;
  GroupedMatmul(const Tensor& c, const Tensor& a, const Tensor& b, const ExpertRows& rows,
                const GroupedOptions& options)
      : c(data_of<T>(c)),
        a(static_cast<const Element*>(a.data())),
        b(static_cast<const Element*>(b.data())),
        b_expert(b.stride(0)),
        c_stride(stride_of(c, 0)),
        a_stride(stride_of(a, 0)),
        b_stride(stride_of(b, 1)),
        n(static_cast<int>(c.extent(1))),
        k(static_cast<int>(a.extent(1))),
        tokens_a(options.tokens_a),
        accumulate(options.accumulate),
        scale(static_cast<Acc<T>>(options.scale)),
        rows(rows) {}
  GroupedMatmul(const Tensor& c, const Quantized& a, const Quantized& b, const ExpertRows& rows,
                const GroupedOptions& options)
      : GroupedMatmul(c, a.values, b.values.split_first(c.extent(1)), rows, options) {
    a_scales = data_of<float>(a.scales);
    b_scales = data_of<float>(b.scales);
  }
  // c is neither read nor scaled.
  __device__ bool stores_sums() const { return !accumulate && scale == Acc<T>(1); }
  // The sum of the products of fp8 numbers, times the scales of their row and column.
  __device__ Acc<T> scaled(Acc<T> sum, int row, int expert, int column) const {
    if constexpr (kHasScales) {
      sum *= a_scales[rows.source(row, tokens_a)];
      sum *= b_scales[expert * n + column];
    }
    return sum;
  }
  // What c becomes where it is `before` and the sum of the products is `sum`.
  __device__ T result(T before, Acc<T> sum) const {
    return down<T>(accumulate ? up(before) + scale * sum : scale * sum);
  }
  T* c;
  const Element *a, *b;
  const float *a_scales = nullptr, *b_scales = nullptr;
  std::int64_t b_expert;
  int c_stride, a_stride, b_stride, n, k;
  bool tokens_a, accumulate;
  Acc<T> scale;
  GroupedRows rows;
};

// dw[expert] [+]= a^T b
template <class T, class C>
struct GroupedGradient {
  GroupedGradient(const Tensor& dw, const Tensor& a, const Tensor& b, const ExpertRows& rows,
                  const GroupedOptions& options)
      : dw(data_of<C>(dw)),
        a(data_of<T>(a)),
        b(data_of<T>(b)),
        dw_expert(dw.stride(0)),
        dw_stride(stride_of(dw, 1)),
        a_stride(stride_of(a, 0)),
        b_stride(stride_of(b, 0)),
        m(static_cast<int>(dw.extent(1))),
        n(static_cast<int>(dw.extent(2))),
        tokens_a(options.tokens_a),
        tokens_b(options.tokens_b),
        accumulate(options.accumulate),
        rows(rows) {}
  C* dw;
  const T *a, *b;
  std::int64_t dw_expert;
  int dw_stride, a_stride, b_stride, m, n;
  bool tokens_a, tokens_b, accumulate;
  GroupedRows rows;
};

// ---- tiles
// A tile begins at a row and a column of a matrix.
struct TileStart {
  int row, column;
};

// Tile i of a matrix of row_tiles x column_tiles. Neighbours, which run at the same time, share
// rows and columns: columns one after the other, of up to eight tiles of rows at a time.
template <int kRows, int kColumns>
__device__ inline TileStart tile_start(int i, int row_tiles, int column_tiles) {
  constexpr int kTogether = 8;
  const int first = i / (kTogether * column_tiles) * kTogether, rest = i - first * column_tiles;
  const int rows = min(kTogether, row_tiles - first);
  return {(first + rest % rows) * kRows, rest / rows * kColumns};
}

// The tiles of c, whose rows are those of all experts: only the last tile of an expert has fewer
// than kRows.
template <int kRows, int kColumns>
struct ExpertTiles {
  struct Tile {
    int expert, row, end, column;  // rows [row, end), of which only kRows belong to the tile
  };

  // `memory`: shared_bytes() of shared memory. By all threads of a block.
  __device__ ExpertTiles(void* memory, const GroupedRows& rows, int columns)
      : first(static_cast<int*>(memory)),
        offsets(rows.offsets),
        experts(rows.experts),
        column_tiles((columns + kColumns - 1) / kColumns) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane < kTeam) {
      int before = 0;
      for (int begin = 0; begin < experts; begin += kTeam) {
        const int e = begin + lane;
        const int tiles = e < experts ? (offsets[e + 1] - offsets[e] + kRows - 1) / kRows : 0;
        const int sum = inclusive_sum(tiles, lane);
        if (e < experts) first[e + 1] = before + sum;
        before += shuffle(sum, kTeam - 1);
      }
      if (lane == 0) first[0] = 0;
    }
    __syncthreads();
  }

  __device__ int count() const { return first[experts] * column_tiles; }

  __device__ Tile operator[](int i) const {
    int expert = 0, beyond = experts;  // first[expert] <= i / column_tiles < first[beyond]
    while (beyond - expert > 1) {
      const int middle = (expert + beyond) / 2;
      (first[middle] <= i / column_tiles ? expert : beyond) = middle;
    }
    const int before = first[expert];
    const TileStart start = tile_start<kRows, kColumns>(i - before * column_tiles,
                                                        first[expert + 1] - before, column_tiles);
    return {expert, offsets[expert] + start.row, offsets[expert + 1], start.column};
  }

  static std::size_t shared_bytes(const GroupedRows& rows) {
    return static_cast<std::size_t>(rows.experts + 1) * sizeof(int);
  }
  // At most so many: each expert may have a tile that is not full.
  static std::int64_t most(std::int64_t rows, std::int64_t experts, std::int64_t columns) {
    return (rows / kRows + std::min(rows, experts)) * ceil_div<std::int64_t>(columns, kColumns);
  }

  int* first;  // (experts + 1): tiles of rows before those of an expert
  const std::int32_t* offsets;
  int experts, column_tiles;
};

// Returns f.template operator()<T>() for 16-bit types, false for others.
template <class F>
bool visit_matrix_type(DType dtype, F&& f) {
  if (dtype == DType::BF16) return f.template operator()<Bf16>();
  if (dtype == DType::F16) return f.template operator()<Half>();
  return false;
}

// ---- on the matrix units. They return false, without any effect, for operands that they do not
// compute: other types than 16-bit ones, or rows that do not consist of whole 16-byte words.
// Where the GPU has warpgroups that multiply matrices in shared memory (grouped_warpgroup.cu), for
// operands that matrix_… computes.
bool warpgroup_grouped_matmul(const Context& context, const Tensor& c, const Tensor& a,
                              const Tensor& b, const ExpertRows& rows,
                              const GroupedOptions& options);
bool warpgroup_grouped_gradient(const Context& context, const Tensor& dw, const Tensor& a,
                                const Tensor& b, const ExpertRows& rows,
                                const GroupedOptions& options);
bool matrix_grouped_matmul(const Context& context, const Tensor& c, const Tensor& a,
                           const Tensor& b, const ExpertRows& rows, const GroupedOptions& options);
bool warpgroup_grouped_fp8(const Context& context, const Tensor& c, const Quantized& a,
                           const Quantized& b, const ExpertRows& rows,
                           const GroupedOptions& options);
bool matrix_grouped_fp8(const Context& context, const Tensor& c, const Quantized& a,
                        const Quantized& b, const ExpertRows& rows, const GroupedOptions& options);
bool matrix_grouped_gradient(const Context& context, const Tensor& dw, const Tensor& a,
                             const Tensor& b, const ExpertRows& rows,
                             const GroupedOptions& options);

}  // namespace kintsugi::gpu
