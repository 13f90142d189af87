// fp8: the largest magnitudes of rows and columns, then the values, as they are and transposed.
#include <cuda_fp8.h>

#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/fp8_scale.h"

namespace kintsugi::cuda {
namespace {

// ---- numbers
template <class T>
__device__ inline float as_float(T x) {
  return static_cast<float>(up(x));
}
// Element k of a pack. It extracts from words of two bf16, which otherwise take a register each.
template <class T, int N>
__device__ inline float element(const Pack<T, N>& pack, int k) {
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
    unsigned words[N / 2];
    memcpy(words, &pack, sizeof(words));
    return __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xFFFF0000u);
  } else {
    return as_float(pack.v[k]);
  }
}
// The bits of |x| as a float. Their order is that of the magnitudes; a NaN is above infinity.
template <class T>
__device__ inline unsigned magnitude_bits(T x) {
  return __float_as_uint(as_float(x)) & 0x7FFFFFFFu;
}
// Two numbers in fp8, the first in the low byte.
__device__ inline unsigned fp8_pair(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

// The magnitudes of N numbers, or the largest ones of N columns. One instruction compares a pair of
// 16-bit floats.
template <class T, int N>
struct Magnitudes {
  static constexpr bool kPairs = sizeof(T) == 2 && N % 2 == 0;
  static constexpr int kWords = kPairs ? N / 2 : N;
  unsigned words[kWords] = {};

  Magnitudes() = default;
  __device__ explicit Magnitudes(const Pack<T, N>& x) {
    if constexpr (kPairs) memcpy(words, &x, sizeof(words));
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      words[i] = kPairs ? words[i] & 0x7FFF7FFFu : magnitude_bits(x.v[i]);
  }
  __device__ void include(const Magnitudes& other) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = larger(words[i], other.words[i]);
  }
  __device__ unsigned at(int k) const {
    if constexpr (kPairs) {
      return widened(words[k / 2] >> (k % 2 * 16) & 0xFFFFu);
    } else {
      return words[k];
    }
  }
  __device__ unsigned largest() const {
    unsigned word = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) word = larger(word, words[i]);
    return kPairs ? widened(max(word & 0xFFFFu, word >> 16)) : word;
  }

 private:
  __device__ static unsigned larger(unsigned a, unsigned b) {
    return kPairs ? __vmaxu2(a, b) : max(a, b);
  }
  __device__ static unsigned widened(unsigned bits) {
    T value = {};
    const auto low = static_cast<unsigned short>(bits);
    if constexpr (kPairs) memcpy(&value, &low, sizeof(low));
    return magnitude_bits(value);
  }
};

// Every thread receives the largest value of its block. `shared` has space for 32 values.
__device__ inline unsigned block_max(unsigned x, unsigned* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  x = __reduce_max_sync(~0u, x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return __reduce_max_sync(~0u, lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : 0u);
}

// What the values became, for QuantizeOptions::statistics.
struct Counts {
  unsigned zero = 0, largest = 0;

  __device__ void add(float before, unsigned after) {
    zero += before != 0.0f && (after & 0x7Fu) == 0;
    largest += (after & 0x7Fu) == 0x7Eu;
  }
  __device__ void write(unsigned* counts) const {
    const unsigned zeros = __reduce_add_sync(~0u, zero), most = __reduce_add_sync(~0u, largest);
    if (threadIdx.x % 32 != 0) return;
    if (zeros != 0) atomicAdd(counts, zeros);
    if (most != 0) atomicAdd(counts + 1, most);
  }
};

// ---- a matrix to quantize, and one of the results
template <class T>
struct Source {
  const T* x;
  std::int64_t stride;
  int rows, columns;

  __device__ const T* at(int row, int column) const { return x + row * stride + column; }
};

struct Target {
  std::uint8_t* values = nullptr;
  float* scales = nullptr;
  int scale_count = 0;
  const unsigned* maxima = nullptr;  // of each row of the result
  int step = 1;                      // 0: one maximum for all rows
  bool power_of_two = true;

  // The inverse of the scale of a row; the caller that is responsible for it writes the scale.
  __device__ float inverse(int row, bool writes) const {
    const Fp8Scale scale = fp8_scale(maxima[row * step], power_of_two);
    if (writes && row < scale_count) scales[row] = scale.scale;
    return scale.inverse;
  }
};

// ---- maxima: blocks (panels of 32 packs of columns, strips of rows), a warp for each row
constexpr int kStripRows = 128, kStripWarps = 8, kRowsAtOnce = 4;

struct Maxima {
  unsigned *rows = nullptr, *columns = nullptr, *all = nullptr;  // nullptr: not wanted
};

template <class T, int N>
__device__ void write_column_maxima(const Maxima& to, const Magnitudes<T, N>& columns, int width) {
  __shared__ unsigned shared[kStripWarps][N][33];  // 33: fewer bank conflicts
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int k = 0; k < N; ++k) shared[warp][k][lane] = columns.at(k);
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  const int column = static_cast<int>(blockIdx.x) * 32 * N + i;
  unsigned largest = 0;
  if (i < 32 * N)
#pragma unroll
    for (int w = 0; w < kStripWarps; ++w) largest = max(largest, shared[w][i % N][i / N]);
  if (to.columns != nullptr && i < 32 * N && column < width)
    atomicMax(to.columns + column, largest);
  if (to.all == nullptr) return;
  largest = __reduce_max_sync(~0u, largest);
  // Few warps find a larger maximum than those before them: most need no atomic.
  if (lane == 0 && largest > __ldcg(to.all)) atomicMax(to.all, largest);
}

template <class T, int N>
__global__ void __launch_bounds__(kStripWarps * 32) maxima_kernel(Maxima to, Source<T> from) {
  static_assert(N <= kStripWarps && kStripRows % (kStripWarps * kRowsAtOnce) == 0);
  allow_next();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int column = (static_cast<int>(blockIdx.x) * 32 + lane) * N;
  const int first = static_cast<int>(blockIdx.y) * kStripRows;
  Magnitudes<T, N> columns;
  for (int i = warp; i < kStripRows; i += kStripWarps * kRowsAtOnce) {
    Pack<T, N> in[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first + i + r * kStripWarps;
      in[r] =
          row < from.rows && column < from.columns ? load<N>(from.at(row, column)) : Pack<T, N>{};
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const Magnitudes<T, N> here(in[r]);
      columns.include(here);
      if (to.rows == nullptr) continue;
      const int row = first + i + r * kStripWarps;
      const unsigned largest = __reduce_max_sync(~0u, here.largest());
      if (lane == 0 && row < from.rows) atomicMax(to.rows + row, largest);
    }
  }
  if (to.columns != nullptr || to.all != nullptr) write_column_maxima(to, columns, from.columns);
}

// ---- values, tile by tile: x is read once, and transposed in shared memory
constexpr int kTileRows = 128, kTileColumns = 64, kTilePack = 8, kTileThreads = 256;

// The tile's transposed values: a word has four rows of one column. Chunks of four words are
// permuted, so that neither the words written nor the chunks read have bank conflicts.
struct TransposedTile {
  alignas(16) unsigned words[kTileColumns * kTileRows / 4];

  __device__ static int chunk(int column, int index) {
    return column * (kTileRows / 4) + (index ^ column / kTilePack) * 4;
  }
  __device__ void write(int column, int quad, unsigned word) {
    words[chunk(column, quad / 4) + quad % 4] = word;
  }
  __device__ uint4 read(int column, int index) const {  // 16 rows
    return *reinterpret_cast<const uint4*>(words + chunk(column, index));
  }
};

// Blocks (tiles of columns, tiles of rows). A thread has 4 rows of 8 columns.
template <class T, bool kRows, bool kColumns, bool kCounts>
__global__ void __launch_bounds__(kTileThreads, sizeof(T) == 2 ? 5 : 3)
    cast_tiles_kernel(Target rows, Target columns, unsigned* counts, Source<T> from) {
  __shared__ TransposedTile tile;
  __shared__ float row_inverses[kTileRows], column_inverses[kTileColumns];
  allow_next();
  wait_for_previous();
  const int thread = static_cast<int>(threadIdx.x), group = thread % 8, quad = thread / 8;
  const int first_row = static_cast<int>(blockIdx.y) * kTileRows,
            first_column = static_cast<int>(blockIdx.x) * kTileColumns;
  const int row = first_row + quad * 4, column = first_column + group * kTilePack;
  Pack<T, kTilePack> in[4];
#pragma unroll
  for (int r = 0; r < 4; ++r)
    in[r] = row + r < from.rows && column < from.columns ? load<kTilePack>(from.at(row + r, column))
                                                         : Pack<T, kTilePack>{};
  if (kRows && thread < kTileRows) {
    const int i = first_row + thread;
    row_inverses[thread] = i < from.rows ? rows.inverse(i, blockIdx.x == 0) : 1.0f;
  }
  if (kColumns && thread >= kTileRows && thread < kTileRows + kTileColumns) {
    const int i = thread - kTileRows, j = first_column + i;
    column_inverses[i] = j < from.columns ? columns.inverse(j, blockIdx.y == 0) : 1.0f;
  }
  __syncthreads();

  Counts seen;
  if constexpr (kRows) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float inverse = row_inverses[quad * 4 + r];
      unsigned words[2] = {};
#pragma unroll
      for (int k = 0; k < kTilePack; k += 2) {
        const float a = element(in[r], k), b = element(in[r], k + 1);
        const unsigned pair = fp8_pair(a * inverse, b * inverse);
        words[k / 4] |= pair << (k % 4 * 8);
        if constexpr (kCounts) seen.add(a, pair), seen.add(b, pair >> 8);
      }
      if (row + r < from.rows && column < from.columns)
        *reinterpret_cast<uint2*>(rows.values + static_cast<std::int64_t>(row + r) * from.columns +
                                  column) = make_uint2(words[0], words[1]);
    }
  }
  if constexpr (kColumns) {
#pragma unroll
    for (int k = 0; k < kTilePack; ++k) {
      const float inverse = column_inverses[group * kTilePack + k];
      unsigned word = 0;
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        const float a = element(in[r], k), b = element(in[r + 1], k);
        const unsigned pair = fp8_pair(a * inverse, b * inverse);
        word |= pair << (r * 8);
        if constexpr (kCounts && !kRows) seen.add(a, pair), seen.add(b, pair >> 8);
      }
      tile.write(group * kTilePack + k, quad, word);
    }
    __syncthreads();
    constexpr int kChunks = kTileRows / 16;
#pragma unroll
    for (int i = thread; i < kTileColumns * kChunks; i += kTileThreads) {
      const int c = i / kChunks, chunk = i % kChunks, r = first_row + chunk * 16;
      if (first_column + c < from.columns && r < from.rows)
        *reinterpret_cast<uint4*>(columns.values +
                                  static_cast<std::int64_t>(first_column + c) * from.rows + r) =
            tile.read(c, chunk);
    }
  }
  if constexpr (kCounts) seen.write(counts);
}

// The same for sizes and addresses that the tiles do not take: a thread per element.
template <class T>
__global__ void __launch_bounds__(256)
    cast_each_kernel(Target rows, Target columns, unsigned* counts, Source<T> from) {
  allow_next();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x),
            column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  Counts seen;
  if (column < from.columns) {
    const float value = as_float(*from.at(row, column));
    unsigned in_row = 0, in_column = 0;
    if (rows.values != nullptr) {
      in_row = fp8_pair(value * rows.inverse(row, column == 0), 0.0f);
      rows.values[static_cast<std::int64_t>(row) * from.columns + column] =
          static_cast<std::uint8_t>(in_row);
    }
    if (columns.values != nullptr) {
      in_column = fp8_pair(value * columns.inverse(column, row == 0), 0.0f);
      columns.values[static_cast<std::int64_t>(column) * from.rows + row] =
          static_cast<std::uint8_t>(in_column);
    }
    seen.add(value, rows.values != nullptr ? in_row : in_column);
  }
  if (counts != nullptr) seen.write(counts);
}

// statistics (4): the largest of the maxima, and the counts of this call added.
__global__ void __launch_bounds__(1024)
    statistics_kernel(float* statistics, const unsigned* maxima, int count, const unsigned* counts,
                      float elements) {
  __shared__ unsigned shared[32];
  unsigned largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    largest = max(largest, maxima[i]);
  largest = block_max(largest, shared);
  if (threadIdx.x != 0) return;
  const float value = __uint_as_float(largest);
  if (statistics[0] < value) statistics[0] = value;
  statistics[1] += static_cast<float>(counts[0]);
  statistics[2] += static_cast<float>(counts[1]);
  statistics[3] += elements;
}

// ---- rows alone: a block reads its row once, finds the maximum and writes the values
// The most threads of a block, so few that two blocks have space on a multiprocessor.
template <int kVecs>
inline constexpr int kRowThreads = kVecs == 8 ? 640 : 512;

template <class T, int N, int kVecs>
__global__ void __launch_bounds__(kRowThreads<kVecs>, 2)
    cast_rows_kernel(Target to, Source<T> from) {
  __shared__ unsigned shared[32];
  allow_next();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x), packs = from.columns / N;
  const int lane = Team<0>::lane(), lanes = Team<0>::lanes();
  RowCache<T, N, kVecs> x;
  x.read(from.at(row, 0), packs, lane, lanes);
  Magnitudes<T, N> here;
  for_packs<kVecs>(packs, lane, lanes,
                   [&](int j, int i) { here.include(Magnitudes<T, N>(x.at(j, i))); });
  const Fp8Scale scale = fp8_scale(block_max(here.largest(), shared), to.power_of_two);
  if (lane == 0 && row < to.scale_count) to.scales[row] = scale.scale;
  std::uint8_t* values = to.values + static_cast<std::int64_t>(row) * from.columns;
  for_packs<kVecs>(packs, lane, lanes, [&](int j, int i) {
    const Pack<T, N> in = x.at(j, i);
    Pack<std::uint8_t, N> out;
    if constexpr (N == 1) {
      out.v[0] = static_cast<std::uint8_t>(fp8_pair(element(in, 0) * scale.inverse, 0.0f));
    } else {
#pragma unroll
      for (int k = 0; k < N; k += 2) {
        const unsigned pair =
            fp8_pair(element(in, k) * scale.inverse, element(in, k + 1) * scale.inverse);
        out.v[k] = static_cast<std::uint8_t>(pair);
        out.v[k + 1] = static_cast<std::uint8_t>(pair >> 8);
      }
    }
    store(values + static_cast<std::int64_t>(i) * N, out);
  });
}

// ---- launches
template <class T>
Source<T> source_of(const Tensor& x) {
  return {.x = data_of<T>(x),
          .stride = x.stride(0),
          .rows = static_cast<int>(x.extent(0)),
          .columns = static_cast<int>(x.extent(1))};
}

Target target_of(const Quantized& q, const QuantizeOptions& o, const unsigned* maxima) {
  if (!q) return {};
  return {.values = static_cast<std::uint8_t*>(q.values.data()),
          .scales = data_of<float>(q.scales),
          .scale_count = static_cast<int>(q.scales.elements()),
          .maxima = maxima,
          .step = o.one_scale ? 0 : 1,
          .power_of_two = o.power_of_two};
}

bool aligned_to(const void* address, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

template <class T>
bool packs_align(const Tensor& x, const Target& rows) {
  return rows_of<const T>(x).aligned() && x.extent(1) % kTilePack == 0 &&
         aligned_to(rows.values, kTilePack);
}

template <class T, int N, int kVecs>
void launch_rows(const Context& context, const Target& to, const Source<T>& from) {
  const int packs = from.columns / N, vecs = kVecs == 0 ? 4 : kVecs;
  const int threads = std::clamp(ceil_div(ceil_div(packs, vecs), 32) * 32, 32, kRowThreads<kVecs>);
  launch_overlapped(context, cast_rows_kernel<T, N, kVecs>, static_cast<unsigned>(from.rows),
                    static_cast<unsigned>(threads), 0, to, from);
}

template <class T>
void cast_rows(const Context& context, const Target& to, const Tensor& x) {
  const Source<T> from = source_of<T>(x);
  if (!packs_align<T>(x, to)) return launch_rows<T, 1, 0>(context, to, from);
  const int packs = from.columns / kTilePack;
  if constexpr (sizeof(T) == 2) {  // the row stays in registers
    if (packs <= 4 * kRowThreads<4>) return launch_rows<T, kTilePack, 4>(context, to, from);
    if (packs <= 8 * kRowThreads<8>) return launch_rows<T, kTilePack, 8>(context, to, from);
  }
  launch_rows<T, kTilePack, 0>(context, to, from);
}

template <class T>
void find_maxima(const Context& context, const Maxima& to, const Tensor& x) {
  const Source<T> from = source_of<T>(x);
  const auto launch = [&]<int N>() {
    const dim3 blocks(static_cast<unsigned>(ceil_div(from.columns, 32 * N)),
                      static_cast<unsigned>(ceil_div(from.rows, kStripRows)));
    // It follows a memset, which nothing overlaps.
    maxima_kernel<T, N><<<blocks, kStripWarps * 32, 0, context.stream>>>(to, from);
    KINTSUGI_LAUNCHED();
  };
  if (rows_of<const T>(x).aligned() && from.columns % kVecSize<T> == 0)
    launch.template operator()<kVecSize<T>>();
  else
    launch.template operator()<1>();
}

template <class T, bool kCounts>
void cast_tiles(const Context& context, const Target& rows, const Target& columns, unsigned* counts,
                const Source<T>& from) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(from.columns, kTileColumns)),
                    static_cast<unsigned>(ceil_div(from.rows, kTileRows)));
  const auto kernel = rows.values == nullptr      ? cast_tiles_kernel<T, false, true, kCounts>
                      : columns.values == nullptr ? cast_tiles_kernel<T, true, false, kCounts>
                                                  : cast_tiles_kernel<T, true, true, kCounts>;
  launch_overlapped(context, kernel, blocks, kTileThreads, 0, rows, columns, counts, from);
}

template <class T>
void cast(const Context& context, const Target& rows, const Target& columns, unsigned* counts,
          const Tensor& x) {
  const Source<T> from = source_of<T>(x);
  const bool tiles =
      packs_align<T>(x, rows) &&
      (columns.values == nullptr || (aligned16(columns.values) && from.rows % 16 == 0));
  if (!tiles) {
    const RowGrid grid(from.rows, from.columns);
    launch_overlapped(context, cast_each_kernel<T>, grid.blocks, grid.threads, 0, rows, columns,
                      counts, from);
  } else if (counts != nullptr) {
    cast_tiles<T, true>(context, rows, columns, counts, from);
  } else {
    cast_tiles<T, false>(context, rows, columns, counts, from);
  }
}

}  // namespace

void quantize(const Context& context, Quantized rows, Quantized columns, Tensor x,
              const QuantizeOptions& o) {
  check_quantize(rows, columns, x, o);
  if (x.elements() == 0) return;
  const auto m = static_cast<std::size_t>(x.extent(0)), n = static_cast<std::size_t>(x.extent(1));
  visit_device_float(x.dtype(), [&]<class T>() {
    if (!columns && !o.one_scale && !o.statistics)
      return cast_rows<T>(context, target_of(rows, o, nullptr), x);
    // Scratch: two counts, one maximum of all, those of the rows, those of the columns.
    const std::size_t scratch = 3 + m + n;
    unsigned* counts = context.workspace.get<unsigned>(scratch, context.stream);
    unsigned *all = counts + 2, *by_row = all + 1, *by_column = by_row + m;
    KINTSUGI_CUDA(cudaMemsetAsync(counts, 0, scratch * sizeof(unsigned), context.stream));
    Maxima maxima;
    if (o.one_scale) maxima.all = all;
    if (!o.one_scale && rows) maxima.rows = by_row;
    if (!o.one_scale && columns) maxima.columns = by_column;
    find_maxima<T>(context, maxima, x);
    const unsigned *row_maxima = o.one_scale ? all : by_row,
                   *column_maxima = o.one_scale ? all : by_column;
    cast<T>(context, target_of(rows, o, row_maxima), target_of(columns, o, column_maxima),
            o.statistics ? counts : nullptr, x);
    if (!o.statistics) return;
    statistics_kernel<<<1, 1024, 0, context.stream>>>(data_of<float>(o.statistics),
                                                      rows ? row_maxima : column_maxima,
                                                      static_cast<int>(o.one_scale ? 1
                                                                       : rows      ? m
                                                                                   : n),
                                                      counts, static_cast<float>(m * n));
    KINTSUGI_LAUNCHED();
  });
}

}  // namespace kintsugi::cuda
