// Matmuls of the rows of each expert on the matrix units. A block computes a tile of the result
// from slices of both operands, which it copies to a ring in shared memory: some slices are under
// way while one is multiplied, and the fragments of a product are loaded during the one before it.
#include "backend/gpu/kernels/experts/grouped.cuh"
#include "backend/gpu/kernels/fragments.cuh"

namespace kintsugi::gpu {
namespace {

// A wave computes 64 x 64 elements: 4 x 4 products of 16 x 16 for 8 loads.
template <class T>
struct Shape {
  using F = Fragments<T>;
  static constexpr int kWaves = 4, kThreads = kWaves * F::kLanes;
  static constexpr int kWaveTiles = 4, kWaveSide = 16 * kWaveTiles;
  static constexpr int kRows = 2 * kWaveSide, kColumns = 2 * kWaveSide;
  // Two blocks of mma fit on a multiprocessor of data centre GPUs, one on the others.
  static constexpr int kSlice = kMma ? 64 : 32, kStages = kMma ? 3 : 2, kResident = kMma ? 2 : 1;

  using Sums = typename F::Sums[kWaveTiles][kWaveTiles];
  struct Operands {
    typename F::Left left[kWaveTiles];
    typename F::Right right[kWaveTiles];
  };
};

// Where a thread's wave computes.
template <class T>
struct WavePlace {
  static constexpr int kSide = Shape<T>::kWaveSide;
  __device__ WavePlace()
      : lane(static_cast<int>(threadIdx.x) % Shape<T>::F::kLanes),
        row(static_cast<int>(threadIdx.x) / Shape<T>::F::kLanes / 2 * kSide),
        column(static_cast<int>(threadIdx.x) / Shape<T>::F::kLanes % 2 * kSide) {}
  int lane, row, column;  // of the block's tile
};

// Which elements of a slice a thread copies: words of the same columns, of every kStep-th row.
template <int kThreads, int kColumns>
struct CopyPlace {
  static constexpr int kRowWords = kColumns / 8, kStep = kThreads / kRowWords;
  static_assert(kThreads % kRowWords == 0);
  int row = static_cast<int>(threadIdx.x) / kRowWords,
      column = static_cast<int>(threadIdx.x) % kRowWords * 8;
};

// Copies 16 bytes of a tile; numbers in fp8 become 16-bit ones, as not all matrix units have fp8.
template <class T, class E>
__device__ inline void copy_word(T* to, const E* from, bool present) {
  if constexpr (std::is_same_v<T, E>) {
    copy_async(to, from, present);
  } else {
    Pack<T, 8> word = {};
    if (present) {
      const Pack<E, 8> codes = load<8>(from);
#pragma unroll
      for (int i = 0; i < 8; ++i) word.v[i] = down<T>(to_float(codes.v[i]));
    }
    store(to, word);
  }
}

// Copies rows of x from column0 on, with zeros beyond `columns`. sources: the row of x for each row
// of the tile; negative: zeros.
template <int kThreads, class T, class E, int kRows, int kColumns>
__device__ inline void copy_sources(SharedTile<T, kRows, kColumns>& tile, const E* x, int stride,
                                    int column0, int columns, const int* sources) {
  using Place = CopyPlace<kThreads, kColumns>;
  static_assert(kRows % Place::kStep == 0);
  const Place own;
  const bool inside = column0 + own.column < columns;
#pragma unroll
  for (int i = 0; i < kRows / Place::kStep; ++i) {
    const int row = own.row + i * Place::kStep, from = sources[row];
    const bool present = inside && from >= 0;
    copy_word(tile.at(row, own.column),
              present ? x + static_cast<std::int64_t>(from) * stride + column0 + own.column : x,
              present);
  }
}
// The same of `rows` rows from the first of x on.
template <int kThreads, class T, class E, int kRows, int kColumns>
__device__ inline void copy_adjacent(SharedTile<T, kRows, kColumns>& tile, const E* x, int stride,
                                     int column0, int columns, int rows) {
  using Place = CopyPlace<kThreads, kColumns>;
  static_assert(kRows % Place::kStep == 0);
  const Place own;
  const E* from = x + static_cast<std::int64_t>(own.row) * stride + column0 + own.column;
  const int present = column0 + own.column < columns ? rows - own.row : 0;
#pragma unroll
  for (int i = 0; i < kRows / Place::kStep; ++i, from += Place::kStep * stride) {
    const bool here = i * Place::kStep < present;
    copy_word(tile.at(own.row + i * Place::kStep, own.column), here ? from : x, here);
  }
}

// Adds the products of `slices` slices. copy(slice, stage) starts the copies of a slice to a stage
// of the ring; prepare(slice) is called one slice before its copy, with a barrier between the two;
// load(operands, stage, term) loads the fragments of 16 terms from `term` on.
template <class T, class Copy, class Prepare, class Load>
__device__ inline void multiply_slices(typename Shape<T>::Sums& sums, int slices, bool active,
                                       Copy&& copy, Prepare&& prepare, Load&& load) {
  using S = Shape<T>;
  constexpr int kStages = S::kStages, kProducts = S::kSlice / 16;
  static_assert(kProducts % 2 == 0);
#pragma unroll
  for (int slice = 0; slice < kStages - 1; ++slice) {
    if (slice < slices) copy(slice, slice);
    commit_copies();
  }
  wait_for_copies<kStages - 2>();
  __syncthreads();
  typename S::Operands operands[2];
  if (active && slices > 0) load(operands[0], 0, 0);
  int stage = 0, free = kStages - 1;  // free: the stage that was read last
  for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const bool last = product + 1 == kProducts;
      if (last) {
        wait_for_copies<kStages - 2>();
        __syncthreads();  // the next slice is complete, this one no longer read
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      if (active && !(last && slice + 1 == slices))
        load(operands[(product + 1) % 2], stage, last ? 0 : (product + 1) * 16);
      if (product == 0) {
        if (slice + kStages - 1 < slices) copy(slice + kStages - 1, free);
        commit_copies();
        prepare(slice + kStages);
        free = free + 1 == kStages ? 0 : free + 1;
      }
      if (!active) continue;
#pragma unroll
      for (int r = 0; r < S::kWaveTiles; ++r)
#pragma unroll
        for (int n = 0; n < S::kWaveTiles; ++n)
          S::F::multiply_add(sums[r][n], operands[product % 2].left[r],
                             operands[product % 2].right[n]);
    }
  }
}

// Calls f(row, column, values) for the neighbouring elements of a lane, at a row and a column of
// the block's tile.
template <class T, class F>
__device__ inline void for_packs(typename Shape<T>::Sums& sums, const WavePlace<T>& wave, F&& f) {
  using Fragment = typename Shape<T>::F;
  constexpr int kAdjacent = Fragment::kAdjacent;
#pragma unroll
  for (int r = 0; r < Shape<T>::kWaveTiles; ++r)
#pragma unroll
    for (int i = 0; i < Fragment::kOwnRows; ++i)
#pragma unroll
      for (int n = 0; n < Shape<T>::kWaveTiles; ++n)
#pragma unroll
        for (int j = 0; j < Fragment::kOwnColumns; j += kAdjacent) {
          float values[kAdjacent];
#pragma unroll
          for (int e = 0; e < kAdjacent; ++e) values[e] = sums[r][n].at(i, j + e);
          f(wave.row + 16 * r + Fragment::row(wave.lane, i),
            wave.column + 16 * n + Fragment::column(wave.lane, j), values);
        }
}

// Stores the sums, rounded, to `rows` rows and `columns` columns of the block's tile at `to`. Four
// lanes store 32 bytes of a row at a time.
template <class T>
__device__ inline void store_rounded(T* to, int stride, int rows, int columns,
                                     const typename Shape<T>::Sums& sums,
                                     const WavePlace<T>& wave) {
  using F = typename Shape<T>::F;
  static_assert(F::kOwnColumns == 4);
#pragma unroll
  for (int r = 0; r < Shape<T>::kWaveTiles; ++r)
#pragma unroll
    for (int i = 0; i < F::kOwnRows; ++i) {
      const int row = wave.row + 16 * r + F::row(wave.lane, i);
      T* const in_row = to + static_cast<std::int64_t>(row) * stride;
#pragma unroll
      for (int n = 0; n < Shape<T>::kWaveTiles; ++n) {
        const Pack<T, 4> pack = F::packed(sums[r][n], i, wave.lane);
        const int column = wave.column + 16 * n + F::packed_column(wave.lane);
        if (row < rows && column < columns) store(in_row + column, pack);
      }
    }
}

// ---- c = a op(b[expert])
template <class T, bool kTransposed>
struct MatmulShape : Shape<T> {
  using S = Shape<T>;
  using Tiles = ExpertTiles<S::kRows, S::kColumns>;
  struct Stage {
    SharedTile<T, S::kRows, S::kSlice> a;
    std::conditional_t<kTransposed, SharedTile<T, S::kColumns, S::kSlice>,
                       SharedTile<T, S::kSlice, S::kColumns>>
        b;
  };
  struct Shared {
    Stage stages[S::kStages];
    int sources[S::kRows];  // the row of a for each row of the tile; -1: none
  };
  static std::size_t shared_bytes(const GroupedRows& rows) {
    return sizeof(Shared) + Tiles::shared_bytes(rows);
  }
};

template <class T, class E, bool kTransposed>
__global__ void __launch_bounds__(Shape<T>::kThreads, Shape<T>::kResident)
    matmul_kernel(GroupedMatmul<T, E> p) {
  using S = MatmulShape<T, kTransposed>;
  using F = typename S::F;
  static_assert(S::kRows <= S::kThreads);
  auto& shared = *reinterpret_cast<typename S::Shared*>(dynamic_shared());
  const typename S::Tiles tiles(&shared + 1, p.rows, p.n);
  const WavePlace<T> wave;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count(); i += static_cast<int>(gridDim.x)) {
    const typename S::Tiles::Tile at = tiles[i];
    const E* const matrix = p.b + at.expert * p.b_expert;
    const int thread = static_cast<int>(threadIdx.x), row = at.row + thread;
    if (thread < S::kRows)
      shared.sources[thread] = row < at.end ? p.rows.source(row, p.tokens_a) : -1;
    __syncthreads();
    typename S::Sums sums;
    const bool active = at.row + wave.row < at.end && at.column + wave.column < p.n;
    multiply_slices<T>(
        sums, (p.k + S::kSlice - 1) / S::kSlice, active,
        [&](int slice, int stage) {
          const int first = slice * S::kSlice;
          typename S::Stage& to = shared.stages[stage];
          copy_sources<S::kThreads>(to.a, p.a, p.a_stride, first, p.k, shared.sources);
          if constexpr (kTransposed)
            copy_adjacent<S::kThreads>(to.b,
                                       matrix + static_cast<std::int64_t>(at.column) * p.b_stride,
                                       p.b_stride, first, p.k, p.n - at.column);
          else
            copy_adjacent<S::kThreads>(to.b, matrix + static_cast<std::int64_t>(first) * p.b_stride,
                                       p.b_stride, at.column, p.n, p.k - first);
        },
        [](int) {},
        [&](typename S::Operands& operands, int stage, int term) {
          const typename S::Stage& from = shared.stages[stage];
#pragma unroll
          for (int r = 0; r < S::kWaveTiles; ++r)
            operands.left[r] = F::load_left(from.a, wave.row + 16 * r, term, wave.lane);
#pragma unroll
          for (int n = 0; n < S::kWaveTiles; ++n)
            if constexpr (kTransposed)
              operands.right[n] = F::load_right(from.b, wave.column + 16 * n, term, wave.lane);
            else
              operands.right[n] =
                  F::load_right_transposed(from.b, term, wave.column + 16 * n, wave.lane);
        });
    if (!active) continue;
    T* const c = p.c + static_cast<std::int64_t>(at.row) * p.c_stride + at.column;
    const int rows = at.end - at.row, columns = p.n - at.column;
    if (!p.kHasScales && p.stores_sums()) {
      store_rounded<T>(c, p.c_stride, rows, columns, sums, wave);
      continue;
    }
    for_packs<T>(sums, wave, [&](int row_in, int column, const float(&values)[F::kAdjacent]) {
      if (row_in >= rows || column >= columns) return;
      T* const to = c + static_cast<std::int64_t>(row_in) * p.c_stride + column;
      Pack<T, F::kAdjacent> pack = {};
      if (p.accumulate) pack = load<F::kAdjacent>(to);
#pragma unroll
      for (int e = 0; e < F::kAdjacent; ++e)
        pack.v[e] = p.result(
            pack.v[e], p.scaled(values[e], at.row + row_in, at.expert, at.column + column + e));
      store(to, pack);
    });
  }
}

// ---- dw[expert] [+]= a^T b: blocks (tile of a matrix, expert)
template <class T>
struct GradientShape : Shape<T> {
  using S = Shape<T>;
  struct Stage {
    SharedTile<T, S::kSlice, S::kRows> a;
    SharedTile<T, S::kSlice, S::kColumns> b;
  };
  struct Shared {
    Stage stages[S::kStages];
    int tokens[S::kStages][S::kSlice];  // of the rows of the next slices; -1: none
  };
};

template <class T, class C>
__global__ void __launch_bounds__(Shape<T>::kThreads, Shape<T>::kResident)
    gradient_kernel(GroupedGradient<T, C> p) {
  using S = GradientShape<T>;
  using F = typename S::F;
  auto& shared = *reinterpret_cast<typename S::Shared*>(dynamic_shared());
  const WavePlace<T> wave;
  const int thread = static_cast<int>(threadIdx.x), expert = static_cast<int>(blockIdx.y);
  const int begin = p.rows.offsets[expert], count = p.rows.offsets[expert + 1] - begin;
  if (count == 0 && p.accumulate) return;
  const TileStart at = tile_start<S::kRows, S::kColumns>(static_cast<int>(blockIdx.x),
                                                         (p.m + S::kRows - 1) / S::kRows,
                                                         (p.n + S::kColumns - 1) / S::kColumns);
  // Thread i finds the token of row i of each slice. `pending`: its choice in the slice after those
  // whose tokens are in shared memory; -1: none.
  const bool finds = (p.tokens_a || p.tokens_b) && thread < S::kSlice;
  const auto choice = [&](int slice) {
    const int row = slice * S::kSlice + thread;
    return finds && row < count ? p.rows.rows[begin + row] : -1;
  };
  const auto write_token = [&](int slice, int of_choice) {
    if (finds)
      shared.tokens[slice % S::kStages][thread] =
          of_choice < 0 ? -1 : p.rows.choices.divide(of_choice);
  };
#pragma unroll
  for (int slice = 0; slice < S::kStages; ++slice) write_token(slice, choice(slice));
  int pending = choice(S::kStages);
  __syncthreads();
  typename S::Sums sums;
  const bool active = at.row + wave.row < p.m && at.column + wave.column < p.n;
  multiply_slices<T>(
      sums, (count + S::kSlice - 1) / S::kSlice, active,
      [&](int slice, int stage) {
        const int first = slice * S::kSlice;
        typename S::Stage& to = shared.stages[stage];
        const auto copy = [&](auto& tile, const T* x, int stride, bool of_tokens, int column,
                              int columns) {
          if (of_tokens)
            copy_sources<S::kThreads>(tile, x, stride, column, columns,
                                      shared.tokens[slice % S::kStages]);
          else
            copy_adjacent<S::kThreads>(tile, x + static_cast<std::int64_t>(begin + first) * stride,
                                       stride, column, columns, count - first);
        };
        copy(to.a, p.a, p.a_stride, p.tokens_a, at.row, p.m);
        copy(to.b, p.b, p.b_stride, p.tokens_b, at.column, p.n);
      },
      [&](int slice) {
        write_token(slice, pending);
        pending = choice(slice + 1);
      },
      [&](typename S::Operands& operands, int stage, int term) {
        const typename S::Stage& from = shared.stages[stage];
#pragma unroll
        for (int r = 0; r < S::kWaveTiles; ++r)
          operands.left[r] = F::load_left_transposed(from.a, term, wave.row + 16 * r, wave.lane);
#pragma unroll
        for (int n = 0; n < S::kWaveTiles; ++n)
          operands.right[n] =
              F::load_right_transposed(from.b, term, wave.column + 16 * n, wave.lane);
      });
  if (!active) return;
  C* const dw = p.dw + expert * p.dw_expert;
  for_packs<T>(sums, wave, [&](int row, int column, const float(&values)[F::kAdjacent]) {
    if (at.row + row >= p.m || at.column + column >= p.n) return;
    C* const to = dw + static_cast<std::int64_t>(at.row + row) * p.dw_stride + at.column + column;
    Pack<C, F::kAdjacent> pack = {};
    if (p.accumulate) pack = load<F::kAdjacent>(to);
#pragma unroll
    for (int e = 0; e < F::kAdjacent; ++e)
      pack.v[e] = down<C>(p.accumulate ? up(pack.v[e]) + values[e] : values[e]);
    store(to, pack);
  });
}

// ---- launches
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
}

// Rows of whole words, in every matrix of x.
bool has_words(const Tensor& x) {
  const auto words = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size_of(x.dtype())) % 16 == 0;
  };
  return aligned16(x.data()) && x.extent(x.rank() - 1) % 8 == 0 && words(x.stride(0)) &&
         (x.rank() < 3 || words(x.stride(1)));
}

template <bool kTransposed, class T, class E>
bool launch_matmul(const Context& context, const GroupedMatmul<T, E>& p, std::int64_t rows) {
  using S = MatmulShape<T, kTransposed>;
  const std::size_t bytes = S::shared_bytes(p.rows);
  if (bytes > kMatrixSharedBytes) return false;
  const std::int64_t blocks =
      std::min<std::int64_t>(S::Tiles::most(rows, p.rows.experts, p.n),
                             static_cast<std::int64_t>(S::kResident) * context.multiprocessors);
  allow_shared(matmul_kernel<T, E, kTransposed>, bytes);
  launch_kernel(context.stream, matmul_kernel<T, E, kTransposed>, static_cast<unsigned>(blocks),
                S::kThreads, bytes, p);
  return true;
}

template <class T, class C>
void launch_gradient(const Context& context, const GroupedGradient<T, C>& p) {
  using S = GradientShape<T>;
  constexpr std::size_t kBytes = sizeof(typename S::Shared);
  static_assert(kBytes <= kMatrixSharedBytes);
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.m, S::kRows) * ceil_div(p.n, S::kColumns)),
                    static_cast<unsigned>(p.rows.experts));
  allow_shared(gradient_kernel<T, C>, kBytes);
  launch_kernel(context.stream, gradient_kernel<T, C>, blocks, S::kThreads, kBytes, p);
}

}  // namespace

bool matrix_grouped_matmul(const Context& context, const Tensor& c, const Tensor& a,
                           const Tensor& b, const ExpertRows& rows, const GroupedOptions& options) {
  if (!has_words(c) || !has_words(a) || !has_words(b)) return false;
  if (warpgroup_grouped_matmul(context, c, a, b, rows, options)) return true;
  return visit_matrix_type(a.dtype(), [&]<class T>() {
    const GroupedMatmul<T> p(c, a, b, rows, options);
    return options.transpose_b ? launch_matmul<true>(context, p, rows.rows.elements())
                               : launch_matmul<false>(context, p, rows.rows.elements());
  });
}

bool matrix_grouped_fp8(const Context& context, const Tensor& c, const Quantized& a,
                        const Quantized& b, const ExpertRows& rows, const GroupedOptions& options) {
  if (!has_words(c) || !aligned16(a.values.data()) || !aligned16(b.values.data())) return false;
  if (warpgroup_grouped_fp8(context, c, a, b, rows, options)) return true;
  return visit_matrix_type(c.dtype(), [&]<class T>() {
    return launch_matmul<true>(context, GroupedMatmul<T, Fp8>(c, a, b, rows, options),
                               rows.rows.elements());
  });
}

bool matrix_grouped_gradient(const Context& context, const Tensor& dw, const Tensor& a,
                             const Tensor& b, const ExpertRows& rows,
                             const GroupedOptions& options) {
  if (!has_words(dw) || !has_words(a) || !has_words(b)) return false;
  if (warpgroup_grouped_gradient(context, dw, a, b, rows, options)) return true;
  return visit_matrix_type(a.dtype(), [&]<class T>() {
    if (dw.dtype() == a.dtype())
      launch_gradient<T, T>(context, {dw, a, b, rows, options});
    else
      launch_gradient<T, float>(context, {dw, a, b, rows, options});
    return true;
  });
}

}  // namespace kintsugi::gpu
