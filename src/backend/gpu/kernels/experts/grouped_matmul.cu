// Matmuls of the rows of each expert, in plain arithmetic: fp32, fp64, and 16-bit operands and
// results that do not suit the matrix units (grouped_matrix.cu). Blocks compute tiles of 64 x 64
// from slices of 16 terms; a thread has every 16th row and column of a tile.
#include "backend/gpu/kernels/experts/grouped.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kSide = 64, kSlice = 16, kThreads = 256, kOwn = 4;
constexpr int kBlocks = 4;  // of a multiprocessor

using Tiles = ExpertTiles<kSide, kSide>;

template <class A>
struct Slice {
  A value[kSlice][kSide + 1];  // 1 more: no bank conflicts
};

// Writes value(side, term, q) to a slice, the q-th of this thread. Neighbouring threads have
// neighbouring terms, or sides.
template <bool kTermsFirst, class A, class F>
__device__ inline void fill_slice(Slice<A>& slice, F&& value) {
  constexpr int kFirst = kTermsFirst ? kSlice : kSide;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int q = 0; q < kSide * kSlice / kThreads; ++q) {
    const int x = thread % kFirst, y = thread / kFirst + q * (kThreads / kFirst);
    const int side = kTermsFirst ? y : x, term = kTermsFirst ? x : y;
    slice.value[term][side] = value(side, term, q);
  }
}

template <class A>
struct PlainTile {
  A sums[kOwn][kOwn] = {};
  int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;

  __device__ void add(const Slice<A>& a, const Slice<A>& b) {
#pragma unroll
    for (int term = 0; term < kSlice; ++term)
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
#pragma unroll
        for (int j = 0; j < kOwn; ++j)
          sums[i][j] += a.value[term][row + 16 * i] * b.value[term][column + 16 * j];
  }
  // Calls f(row, column, sum) for each element of this thread.
  template <class F>
  __device__ void for_each(F&& f) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int j = 0; j < kOwn; ++j) f(row + 16 * i, column + 16 * j, sums[i][j]);
  }
};

template <class A, class E>
__device__ inline A number(E x) {
  if constexpr (std::is_same_v<E, Fp8>) {
    return static_cast<A>(to_float(x));
  } else {
    return up(x);
  }
}

template <class T, class E, bool kTransposed>
__global__ void __launch_bounds__(kThreads) matmul_kernel(GroupedMatmul<T, E> p) {
  using A = Acc<T>;
  KINTSUGI_SHARED(Slice<A>, a);
  KINTSUGI_SHARED(Slice<A>, b);
  const Tiles tiles(dynamic_shared(), p.rows, p.n);
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count(); i += static_cast<int>(gridDim.x)) {
    const Tiles::Tile at = tiles[i];
    const E* const matrix = p.b + at.expert * p.b_expert;
    int source[kOwn];  // of the rows that this thread copies
#pragma unroll
    for (int q = 0; q < kOwn; ++q) {
      const int row = at.row + static_cast<int>(threadIdx.x) / kSlice + q * (kThreads / kSlice);
      source[q] = row < at.end ? p.rows.source(row, p.tokens_a) : -1;
    }
    PlainTile<A> tile;
    for (int first = 0; first < p.k; first += kSlice) {
      fill_slice<true>(a, [&](int, int term, int q) {
        const int from = source[q], x = first + term;
        return from >= 0 && x < p.k
                   ? number<A>(p.a[static_cast<std::int64_t>(from) * p.a_stride + x])
                   : A(0);
      });
      fill_slice<kTransposed>(b, [&](int side, int term, int) {
        const int column = at.column + side, x = first + term;
        if (column >= p.n || x >= p.k) return A(0);
        return number<A>(matrix[kTransposed ? static_cast<std::int64_t>(column) * p.b_stride + x
                                            : static_cast<std::int64_t>(x) * p.b_stride + column]);
      });
      __syncthreads();
      tile.add(a, b);
      __syncthreads();
    }
    tile.for_each([&](int row, int column, A sum) {
      if (at.row + row >= at.end || at.column + column >= p.n) return;
      T& to = p.c[static_cast<std::int64_t>(at.row + row) * p.c_stride + at.column + column];
      to = p.result(p.accumulate ? to : T{},
                    p.scaled(sum, at.row + row, at.expert, at.column + column));
    });
  }
}

// Blocks (tile of a matrix, expert).
template <class T, class C>
__global__ void __launch_bounds__(kThreads) gradient_kernel(GroupedGradient<T, C> p) {
  using A = Acc<T>;
  KINTSUGI_SHARED(Slice<A>, a);
  KINTSUGI_SHARED(Slice<A>, b);
  const int expert = static_cast<int>(blockIdx.y);
  const int begin = p.rows.offsets[expert], end = p.rows.offsets[expert + 1];
  if (begin == end && p.accumulate) return;
  const TileStart at = tile_start<kSide, kSide>(
      static_cast<int>(blockIdx.x), (p.m + kSide - 1) / kSide, (p.n + kSide - 1) / kSide);
  PlainTile<A> tile;
  for (int first = begin; first < end; first += kSlice) {
    const auto fill = [&](Slice<A>& slice, const T* x, int stride, bool tokens, int column0,
                          int width) {
      fill_slice<false>(slice, [&](int side, int term, int) {
        if (first + term >= end || column0 + side >= width) return A(0);
        const int from = p.rows.source(first + term, tokens);
        return up(x[static_cast<std::int64_t>(from) * stride + column0 + side]);
      });
    };
    fill(a, p.a, p.a_stride, p.tokens_a, at.row, p.m);
    fill(b, p.b, p.b_stride, p.tokens_b, at.column, p.n);
    __syncthreads();
    tile.add(a, b);
    __syncthreads();
  }
  C* const dw = p.dw + expert * p.dw_expert;
  tile.for_each([&](int row, int column, A sum) {
    if (at.row + row >= p.m || at.column + column >= p.n) return;
    C& to = dw[static_cast<std::int64_t>(at.row + row) * p.dw_stride + at.column + column];
    to = down<C>(p.accumulate ? static_cast<A>(up(to)) + sum : sum);
  });
}

template <bool kTransposed, class T, class E>
void launch_matmul(const Context& context, const GroupedMatmul<T, E>& p, std::int64_t rows) {
  const std::int64_t blocks =
      std::min<std::int64_t>(Tiles::most(rows, p.rows.experts, p.n),
                             static_cast<std::int64_t>(kBlocks) * context.multiprocessors);
  launch_kernel(context.stream, matmul_kernel<T, E, kTransposed>, static_cast<unsigned>(blocks),
                kThreads, Tiles::shared_bytes(p.rows), p);
}

template <class T, class C>
void launch_gradient(const Context& context, const GroupedGradient<T, C>& p) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.m, kSide) * ceil_div(p.n, kSide)),
                    static_cast<unsigned>(p.rows.experts));
  launch_kernel(context.stream, gradient_kernel<T, C>, blocks, kThreads, 0, p);
}

}  // namespace

void grouped_matmul(const Context& context, Tensor c, Tensor a, Tensor b, const ExpertRows& rows,
                    const GroupedOptions& options) {
  if (rows.rows.elements() == 0 || c.elements() == 0) return;
  if (matrix_grouped_matmul(context, c, a, b, rows, options)) return;
  visit_device_float(a.dtype(), [&]<class T>() {
    const GroupedMatmul<T> p(c, a, b, rows, options);
    const std::int64_t most = rows.rows.elements();
    options.transpose_b ? launch_matmul<true>(context, p, most)
                        : launch_matmul<false>(context, p, most);
  });
}

void grouped_matmul_fp8(const Context& context, Tensor c, Quantized a, Quantized b,
                        const ExpertRows& rows, const GroupedOptions& options) {
  if (rows.rows.elements() == 0 || c.elements() == 0) return;
  if (matrix_grouped_fp8(context, c, a, b, rows, options)) return;
  visit_device_float(c.dtype(), [&]<class T>() {
    launch_matmul<true>(context, GroupedMatmul<T, Fp8>(c, a, b, rows, options),
                        rows.rows.elements());
  });
}

void grouped_weight_gradient(const Context& context, Tensor dw, Tensor a, Tensor b,
                             const ExpertRows& rows, const GroupedOptions& options) {
  if (dw.elements() == 0) return;
  if (matrix_grouped_gradient(context, dw, a, b, rows, options)) return;
  visit_device_float(a.dtype(), [&]<class T>() {
    if (dw.dtype() == a.dtype())
      launch_gradient<T, T>(context, {dw, a, b, rows, options});
    else if constexpr (sizeof(T) == 2)
      launch_gradient<T, float>(context, {dw, a, b, rows, options});
  });
}

}  // namespace kintsugi::gpu
