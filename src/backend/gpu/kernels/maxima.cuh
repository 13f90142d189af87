#pragma once

#include "backend/gpu/kernels/device.cuh"
#include "tensor/tensor.h"

// The largest magnitudes of the rows and columns of a matrix, found by a kernel that reads or
// writes it anyway. The blocks of such a kernel are (panels of 32 packs of columns, strips of
// rows). A warp takes a row of the panel at a time; a thread keeps the maxima of its columns over
// the strip. Blocks merge their maxima with atomics: the result does not depend on their order.
namespace kintsugi::gpu {

template <class T>
__device__ inline float as_float(T x) {
  return static_cast<float>(up(x));
}
// Element k of a pack. It extracts from words of two bf16, which otherwise take a register each.
template <class T, int N>
__device__ inline Acc<T> element(const Pack<T, N>& pack, int k) {
  if constexpr (std::is_same_v<T, Bf16> && N % 2 == 0) {
    unsigned words[N / 2];
    memcpy(words, &pack, sizeof(words));
    return __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xFFFF0000u);
  } else {
    return up(pack.v[k]);
  }
}
// The bits of |x| as a float. Their order is that of the magnitudes; a NaN is above infinity.
template <class T>
__device__ inline unsigned magnitude_bits(T x) {
  return __float_as_uint(as_float(x)) & 0x7FFFFFFFu;
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
    return kPairs ? max_pairs(a, b) : max(a, b);
  }
  __device__ static unsigned widened(unsigned bits) {
    T value = {};
    const auto low = static_cast<unsigned short>(bits);
    if constexpr (kPairs) memcpy(&value, &low, sizeof(low));
    return magnitude_bits(value);
  }
};

// ---- strips
inline constexpr int kStripWarps = 8, kStripThreads = kStripWarps * 32;

// Strips have 128 rows, or fewer where a matrix has too few blocks for all multiprocessors.
struct StripGrid {
  StripGrid(const Context& context, std::int64_t matrix_rows, std::int64_t packs) {
    const std::int64_t panels = ceil_div<std::int64_t>(packs, 32),
                       enough = std::int64_t{8} * context.multiprocessors;
    while (rows > 32 && panels * ceil_div<std::int64_t>(matrix_rows, rows) < enough) rows /= 2;
    blocks = dim3(static_cast<unsigned>(panels),
                  static_cast<unsigned>(ceil_div<std::int64_t>(matrix_rows, rows)));
  }
  int rows = 128;  // of a strip; a multiple of 4 * kStripWarps
  dim3 blocks;
};

// A thread's columns, and the first of its rows; the others follow at distances of kStripWarps.
template <int N>
struct StripThread {
  __device__ explicit StripThread(int strip_rows)
      : panel(static_cast<int>(blockIdx.x) * 32 * N),
        column(panel + static_cast<int>(threadIdx.x) % 32 * N),
        row(static_cast<int>(blockIdx.y) * strip_rows + static_cast<int>(threadIdx.x) / 32) {}
  int panel, column, row;  // panel: its first column
};

struct StripSize {
  int rows, width, strip_rows;
};

// A RowView without heads, which costs branches between the loads.
template <class T>
struct Matrix {
  explicit Matrix(const Tensor& x)
      : base(data_of<std::remove_const_t<T>>(x)), stride(x.stride(0)) {}
  T* base;
  std::int64_t stride;

  __device__ T* at(int row, int column) const { return base + row * stride + column; }
};

// To be called by all threads of a warp, whose numbers are of one row.
__device__ inline void write_row_maximum(unsigned* to, unsigned largest) {
  largest = team_max(largest);
  if (threadIdx.x % 32 == 0) atomicMax(to, largest);
}

// To be called by all threads of a block of kStripWarps, with the maxima of each thread's columns.
// Thread i receives that of column i of the panel.
template <class T, int N>
__device__ unsigned panel_maximum(const Magnitudes<T, N>& columns) {
  static_assert(N <= kStripWarps, "a thread for each column of the panel");
  KINTSUGI_SHARED(unsigned[kStripWarps][N][32 + 32 / N], shared);  // 32 / N more: no bank conflicts
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();  // shared may still be read by a previous call
#pragma unroll
  for (int k = 0; k < N; ++k) shared[warp][k][lane] = columns.at(k);
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  unsigned largest = 0;
  if (i < 32 * N)
#pragma unroll
    for (int w = 0; w < kStripWarps; ++w) largest = max(largest, shared[w][i % N][i / N]);
  return largest;
}

// The same for a panel from column `first` on. Writes the maxima of the columns below `width`, and
// the largest of all; nullptr: not wanted.
template <class T, int N>
__device__ void write_column_maxima(unsigned* to, unsigned* all, const Magnitudes<T, N>& columns,
                                    int first, int width) {
  unsigned largest = panel_maximum(columns);
  const int i = static_cast<int>(threadIdx.x);
  if (to != nullptr && i < 32 * N && first + i < width) atomicMax(to + first + i, largest);
  if (all == nullptr) return;
  largest = team_max(largest);
  // Few warps find a larger maximum than those before them: most need no atomic.
  if (i % 32 == 0 && largest > load_fresh(all)) atomicMax(all, largest);
}

// ---- memory
struct MaximaBits {
  unsigned *rows = nullptr, *columns = nullptr;
};

inline unsigned* maxima_bits(const Tensor& maxima) {
  return reinterpret_cast<unsigned*>(data_of<std::int32_t>(maxima));
}

inline MaximaBits maxima_bits(const Maxima& maxima) {
  return {.rows = maxima_bits(maxima.rows), .columns = maxima_bits(maxima.columns)};
}

// Kernels include their numbers in maxima that are 0 at first.
inline void clear_maxima(const Context& context, const Maxima& maxima) {
  const auto clear = [&](unsigned* bits, std::int64_t count) {
    if (count > 0)
      set_bytes(bits, 0, static_cast<std::size_t>(count) * sizeof(unsigned), context.stream);
  };
  const std::int64_t rows = maxima.rows.elements(), columns = maxima.columns.elements();
  if (maxima_bits(maxima.columns) == maxima_bits(maxima.rows) + rows)
    return clear(maxima_bits(maxima.rows), rows + columns);
  clear(maxima_bits(maxima.rows), rows);
  clear(maxima_bits(maxima.columns), columns);
}

}  // namespace kintsugi::gpu
