// fp8: the largest magnitudes of rows and columns, then the values, as they are and transposed.
#include <algorithm>

#include "backend/fp8_scale.h"
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/maxima.cuh"
#include "backend/gpu/kernels/norm.cuh"

namespace kintsugi::gpu {

// A float that is rounded to bf16 when it is read.
struct RoundedFloat {
  float value;
};
template <>
inline constexpr DType kDeviceDType<RoundedFloat> = DType::F32;
__device__ inline float up(RoundedFloat x) { return up(to_bf16(x.value)); }

namespace {

// ---- numbers
template <class T, int N>
__device__ inline float number(const Pack<T, N>& pack, int k) {
  return static_cast<float>(element(pack, k));
}
// Calls f with the type of x's elements.
template <class F>
void visit_source(const Tensor& x, bool through_bf16, const F& f) {
  if (through_bf16 && x.dtype() == DType::F32) return f.template operator()<RoundedFloat>();
  visit_device_float(x.dtype(), f);
}

// Every thread receives the largest value of its block. `shared` has space for 32 values.
__device__ inline unsigned block_max(unsigned x, unsigned* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  x = team_max(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return team_max(lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : 0u);
}

// What the values became, for QuantizeOptions::statistics.
struct Counts {
  unsigned zero = 0, largest = 0;

  __device__ void add(float before, unsigned after) {
    zero += before != 0.0f && (after & 0x7Fu) == 0;
    largest += (after & 0x7Fu) == 0x7Eu;
  }
  __device__ void write(unsigned* counts) const {
    const unsigned zeros = team_sum(zero), most = team_sum(largest);
    if (threadIdx.x % 32 != 0) return;
    if (zeros != 0) atomicAdd(counts, zeros);
    if (most != 0) atomicAdd(counts + 1, most);
  }
};

// ---- a matrix to quantize, and one of the results; of a stack, the first one, and what block z
// computes of it
template <class T>
struct Source {
  const T* x;
  std::int64_t stride, matrix;  // of rows, of matrices
  int rows, columns;
  const std::int32_t* used;  // so many of the rows are quantized; nullptr: all

  __device__ Source own() const {
    Source source = *this;
    source.x += blockIdx.z * matrix;
    if (used != nullptr) source.rows = min(rows, *used);
    return source;
  }
  __device__ const T* at(int row, int column) const { return x + row * stride + column; }
};

struct Target {
  std::uint8_t* values = nullptr;
  float* scales = nullptr;
  int rows = 0, columns = 0, scale_count = 0;
  const unsigned* maxima = nullptr;  // of each row of the result
  int step = 1;                      // 0: one maximum for all rows
  bool power_of_two = true;

  __device__ Target own() const {
    Target target = *this;
    target.values += static_cast<std::int64_t>(blockIdx.z) * rows * columns;
    target.scales += blockIdx.z * scale_count;
    target.maxima += blockIdx.z * scale_count;
    return target;
  }
  // The inverse of the scale of a row; the caller that is responsible for it writes the scale.
  __device__ float inverse(int row, bool writes) const {
    const Fp8Scale scale = fp8_scale(maxima[row * step], power_of_two);
    if (writes && row < scale_count) scales[row] = scale.scale;
    return scale.inverse;
  }
};

// ---- maxima
constexpr int kRowsAtOnce = 4;  // of a thread: loads before the first use

struct Found {
  unsigned *rows = nullptr, *columns = nullptr, *all = nullptr;  // nullptr: not wanted
};

template <class T, int N>
__global__ void __launch_bounds__(kStripThreads)
    maxima_kernel(Found to, Source<T> stack, int strip_rows) {
  allow_next();
  const Source<T> from = stack.own();
  if (to.rows != nullptr) to.rows += blockIdx.z * stack.rows;
  if (to.columns != nullptr) to.columns += blockIdx.z * stack.columns;
  const StripThread<N> first(strip_rows);
  Magnitudes<T, N> columns;
  for (int i = 0; i < strip_rows; i += kStripWarps * kRowsAtOnce) {
    Pack<T, N> in[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      in[r] = row < from.rows && first.column < from.columns ? load<N>(from.at(row, first.column))
                                                             : Pack<T, N>{};
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const Magnitudes<T, N> here(in[r]);
      columns.include(here);
      const int row = first.row + i + r * kStripWarps;
      if (to.rows != nullptr && row < from.rows) write_row_maximum(to.rows + row, here.largest());
    }
  }
  if (to.columns != nullptr || to.all != nullptr)
    write_column_maxima(to.columns, to.all, columns, first.panel, from.columns);
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

// Blocks (tiles of columns, tiles of rows from the last to the first: the last rows that the
// previous kernel read or wrote are still in the L2 cache). A thread has 4 rows of 8 columns.
template <class T, bool kRows, bool kColumns, bool kCounts>
__global__ void __launch_bounds__(kTileThreads, sizeof(T) == 2 ? 5 : 3)
    cast_tiles_kernel(Target all_rows, Target all_columns, unsigned* counts, Source<T> stack) {
  KINTSUGI_SHARED(TransposedTile, tile);
  KINTSUGI_SHARED(float[kTileRows], row_inverses);
  KINTSUGI_SHARED(float[kTileColumns], column_inverses);
  allow_next();
  wait_for_previous();
  const Source<T> from = stack.own();
  const Target rows = all_rows.own(), columns = all_columns.own();
  const int thread = static_cast<int>(threadIdx.x), group = thread % 8, quad = thread / 8;
  const int first_row = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTileRows,
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
        const float a = number(in[r], k), b = number(in[r], k + 1);
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
        const float a = number(in[r], k), b = number(in[r + 1], k);
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
    cast_each_kernel(Target all_rows, Target all_columns, unsigned* counts, Source<T> stack) {
  allow_next();
  wait_for_previous();
  const Source<T> from = stack.own();
  const Target rows = all_rows.own(), columns = all_columns.own();
  const int row = static_cast<int>(blockIdx.x),
            column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  Counts seen;
  if (row < from.rows && column < from.columns) {
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
                      float elements, const std::int32_t* used, int columns) {
  KINTSUGI_SHARED(unsigned[32], shared);
  unsigned largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    largest = max(largest, maxima[i]);
  largest = block_max(largest, shared);
  if (threadIdx.x != 0) return;
  const float value = __uint_as_float(largest);
  if (statistics[0] < value) statistics[0] = value;
  statistics[1] += static_cast<float>(counts[0]);
  statistics[2] += static_cast<float>(counts[1]);
  statistics[3] += used == nullptr ? elements : static_cast<float>(*used) * columns;
}

// ---- rows alone: a block reads its row once, finds the maximum and writes the values
// The most threads of a block, so few that two blocks have space on a multiprocessor.
template <int kVecs>
inline constexpr int kRowThreads = kVecs == 8 ? 640 : 512;

template <class T, int N, int kVecs>
__global__ void __launch_bounds__(kRowThreads<kVecs>, 2)
    cast_rows_kernel(Target to, Source<T> from) {
  KINTSUGI_SHARED(unsigned[32], shared);
  allow_next();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x), packs = from.columns / N;
  if (from.used != nullptr && row >= *from.used) return;
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
      out.v[0] = static_cast<std::uint8_t>(fp8_pair(number(in, 0) * scale.inverse, 0.0f));
    } else {
#pragma unroll
      for (int k = 0; k < N; k += 2) {
        const unsigned pair =
            fp8_pair(number(in, k) * scale.inverse, number(in, k + 1) * scale.inverse);
        out.v[k] = static_cast<std::uint8_t>(pair);
        out.v[k + 1] = static_cast<std::uint8_t>(pair >> 8);
      }
    }
    store(values + static_cast<std::int64_t>(i) * N, out);
  });
}

// ---- launches
// The rows of all matrices, and where the kernels find how many are used; nullptr: all.
struct Stack {
  explicit Stack(const Tensor& matrix_or_stack, const ExpertRows& of_experts = {})
      : x(matrix_or_stack.rank() == 2 ? matrix_or_stack : matrix_or_stack.flatten_first()),
        matrices(matrix_or_stack.rank() == 2 ? 1 : static_cast<int>(matrix_or_stack.extent(0))) {
    if (of_experts.offsets)
      used = data_of<std::int32_t>(of_experts.offsets) + of_experts.offsets.elements() - 1;
  }
  int rows() const { return static_cast<int>(x.extent(0)) / matrices; }  // of a matrix
  Tensor x;
  int matrices;
  const std::int32_t* used = nullptr;
};

template <class T>
Source<T> source_of(const Stack& stack) {
  const Tensor& x = stack.x;
  return {.x = data_of<T>(x),
          .stride = x.stride(0),
          .matrix = stack.rows() * x.stride(0),
          .rows = stack.rows(),
          .columns = static_cast<int>(x.extent(1)),
          .used = stack.used};
}

Target target_of(const Quantized& q, const QuantizeOptions& o, const unsigned* maxima,
                 int matrices) {
  if (!q) return {};
  return {.values = static_cast<std::uint8_t*>(q.values.data()),
          .scales = data_of<float>(q.scales),
          .rows = static_cast<int>(q.rows() / matrices),
          .columns = static_cast<int>(q.columns()),
          .scale_count = static_cast<int>(q.scales.elements() / matrices),
          .maxima = maxima,
          .step = o.one_scale ? 0 : 1,
          .power_of_two = o.power_of_two};
}

bool aligned_to(const void* address, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

template <class T>
bool packs_align(const Stack& stack, const Target& rows) {
  return rows_of<const T>(stack.x).aligned() && stack.x.extent(1) % kTilePack == 0 &&
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
void cast_rows(const Context& context, const Target& to, const Stack& stack) {
  Source<T> from = source_of<T>(stack);
  from.rows *= stack.matrices;
  if (!packs_align<T>(stack, to)) return launch_rows<T, 1, 0>(context, to, from);
  const int packs = from.columns / kTilePack;
  if constexpr (sizeof(T) == 2) {  // the row stays in registers
    if (packs <= 4 * kRowThreads<4>) return launch_rows<T, kTilePack, 4>(context, to, from);
    if (packs <= 8 * kRowThreads<8>) return launch_rows<T, kTilePack, 8>(context, to, from);
  }
  launch_rows<T, kTilePack, 0>(context, to, from);
}

template <class T>
void launch_maxima(const Context& context, const Found& to, const Stack& stack) {
  const Source<T> from = source_of<T>(stack);
  const auto launch = [&]<int N>() {
    StripGrid grid(context, from.rows, ceil_div(from.columns, N));
    grid.blocks.z = static_cast<unsigned>(stack.matrices);
    // It follows a memset, which nothing overlaps.
    launch_kernel(context.stream, maxima_kernel<T, N>, grid.blocks, kStripThreads, 0, to, from,
                  grid.rows);
  };
  if (rows_of<const T>(stack.x).aligned() && from.columns % kVecSize<T> == 0)
    launch.template operator()<kVecSize<T>>();
  else
    launch.template operator()<1>();
}

template <class T, bool kCounts>
void cast_tiles(const Context& context, const Target& rows, const Target& columns, unsigned* counts,
                const Source<T>& from, int matrices) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(from.columns, kTileColumns)),
                    static_cast<unsigned>(ceil_div(from.rows, kTileRows)),
                    static_cast<unsigned>(matrices));
  const auto kernel = rows.values == nullptr      ? cast_tiles_kernel<T, false, true, kCounts>
                      : columns.values == nullptr ? cast_tiles_kernel<T, true, false, kCounts>
                                                  : cast_tiles_kernel<T, true, true, kCounts>;
  launch_overlapped(context, kernel, blocks, kTileThreads, 0, rows, columns, counts, from);
}

template <class T>
void cast(const Context& context, const Target& rows, const Target& columns, unsigned* counts,
          const Stack& stack) {
  const Source<T> from = source_of<T>(stack);
  const bool tiles =
      packs_align<T>(stack, rows) &&
      (columns.values == nullptr || (aligned16(columns.values) && from.rows % 16 == 0));
  if (!tiles) {
    RowGrid grid(from.rows, from.columns);
    grid.blocks.z = static_cast<unsigned>(stack.matrices);
    launch_overlapped(context, cast_each_kernel<T>, grid.blocks, grid.threads, 0, rows, columns,
                      counts, from);
  } else if (counts != nullptr) {
    cast_tiles<T, true>(context, rows, columns, counts, from, stack.matrices);
  } else {
    cast_tiles<T, false>(context, rows, columns, counts, from, stack.matrices);
  }
}

// What the cast needs: the maxima, and counts for the statistics, which are 0.
struct Known {
  const unsigned *rows = nullptr, *columns = nullptr;
  unsigned* counts = nullptr;
};

// Maxima that the caller has found.
Known given(const Context& context, const QuantizeOptions& o) {
  Known known{.rows = maxima_bits(o.maxima.rows), .columns = maxima_bits(o.maxima.columns)};
  if (!o.statistics) return known;
  known.counts = context.workspace.get<unsigned>(2, context.stream);
  set_bytes(known.counts, 0, 2 * sizeof(unsigned), context.stream);
  return known;
}

template <class T>
Known found(const Context& context, const Quantized& rows, const Quantized& columns,
            const Stack& stack, const QuantizeOptions& o) {
  const auto m = static_cast<std::size_t>(stack.x.extent(0)),
             n = static_cast<std::size_t>(stack.matrices * stack.x.extent(1));
  // Scratch: two counts, one maximum of all, those of the rows, those of the columns.
  const std::size_t scratch = 3 + m + n;
  unsigned* counts = context.workspace.get<unsigned>(scratch, context.stream);
  unsigned *all = counts + 2, *by_row = all + 1, *by_column = by_row + m;
  set_bytes(counts, 0, scratch * sizeof(unsigned), context.stream);
  Found to;
  if (o.one_scale) to.all = all;
  if (!o.one_scale && rows) to.rows = by_row;
  if (!o.one_scale && columns) to.columns = by_column;
  launch_maxima<T>(context, to, stack);
  return {.rows = o.one_scale ? all : by_row,
          .columns = o.one_scale ? all : by_column,
          .counts = counts};
}

}  // namespace

void find_maxima(const Context& context, Maxima maxima, Tensor x, bool through_bf16) {
  clear_maxima(context, maxima);
  if (x.elements() == 0) return;
  visit_source(x, through_bf16, [&]<class T>() {
    launch_maxima<T>(context,
                     {.rows = maxima_bits(maxima.rows), .columns = maxima_bits(maxima.columns)},
                     Stack(x));
  });
}

void quantize(const Context& context, Quantized rows, Quantized columns, Tensor x,
              const QuantizeOptions& o) {
  if (x.elements() == 0) return;
  const bool known = o.maxima && !o.one_scale;
  const Stack stack(x, o.used);
  visit_source(x, o.through_bf16, [&]<class T>() {
    if (!known && !columns && !o.one_scale && !o.statistics)
      return cast_rows<T>(context, target_of(rows, o, nullptr, 1), stack);
    const Known maxima = known ? given(context, o) : found<T>(context, rows, columns, stack, o);
    cast<T>(context, target_of(rows, o, maxima.rows, stack.matrices),
            target_of(columns, o, maxima.columns, stack.matrices),
            o.statistics ? maxima.counts : nullptr, stack);
    if (!o.statistics) return;
    const std::int64_t count = o.one_scale ? 1 : (rows ? rows : columns).rows();
    launch_kernel(context.stream, statistics_kernel, 1, 1024, 0, data_of<float>(o.statistics),
                  rows ? maxima.rows : maxima.columns, static_cast<int>(count), maxima.counts,
                  static_cast<float>(x.elements()), stack.used,
                  static_cast<int>(stack.x.extent(1)));
  });
}

}  // namespace kintsugi::gpu
