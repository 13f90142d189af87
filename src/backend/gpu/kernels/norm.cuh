#pragma once

#include <algorithm>

#include "backend/gpu/kernels/column_sums.cuh"
#include "backend/gpu/kernels/maxima.cuh"

// Common code of the norms: teams of threads that each own a row, rows cached in registers, and the
// choice of their sizes.
//
// A kernel is compiled for N elements per access, kVecs accesses per thread (0: any number, re-read
// from memory instead of cached) and kLanes threads per row (8, 16 or 32 of a warp; 0: the block).
namespace kintsugi::gpu {

inline constexpr int kTeamBlock = 256;
inline constexpr int kRowBlock = 512;  // maximum threads of a block with one row

template <int kLanes>
struct Team {
  __device__ static int lane() {
    return static_cast<int>(kLanes ? threadIdx.x % (kLanes ? kLanes : 1) : threadIdx.x);
  }
  __device__ static int lanes() { return kLanes ? kLanes : static_cast<int>(blockDim.x); }
  __device__ static int index() {
    return kLanes ? static_cast<int>(threadIdx.x) / (kLanes ? kLanes : 1) : 0;
  }
  __device__ static int count() {
    return kLanes ? static_cast<int>(blockDim.x) / (kLanes ? kLanes : 1) : 1;
  }
  // Must be called by all threads of the block.
  template <class A>
  __device__ static A sum(A x, A* shared) {
    if constexpr (kLanes > 0) {
      return warp_sum<kLanes>(x);
    } else {
      return block_sum(x, shared);
    }
  }
  // Two sums with the synchronization of one. `shared` has space for 64 values.
  template <class A>
  __device__ static void sum(A& x, A& y, A* shared) {
    if constexpr (kLanes > 0) {
      x = warp_sum<kLanes>(x);
      y = warp_sum<kLanes>(y);
    } else {
      const int in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;
      x = warp_sum(x);
      y = warp_sum(y);
      __syncthreads();  // shared may still be read by a previous call
      if (in_warp == 0) {
        shared[warp] = x;
        shared[32 + warp] = y;
      }
      __syncthreads();
      const bool active = in_warp < static_cast<int>(blockDim.x / 32);
      x = warp_sum(active ? shared[in_warp] : A(0));
      y = warp_sum(active ? shared[32 + in_warp] : A(0));
    }
  }
};

// Calls f(j, i) for each access of this thread: its access j is pack i of the row's `packs`.
template <int kVecs, class F>
__device__ inline void for_packs(int packs, int lane, int lanes, F&& f) {
  if constexpr (kVecs > 0) {
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int i = lane + j * lanes;
      if (i < packs) f(j, i);
    }
  } else {
    for (int i = lane; i < packs; i += lanes) f(0, i);
  }
}

// A thread's elements of a row, read from memory only once if they fit in registers.
template <class T, int N, int kVecs>
struct RowCache {
  __device__ void read(const T* from, int packs, int lane, int lanes) {
    row = from;
    if constexpr (kVecs > 0)
      for_packs<kVecs>(packs, lane, lanes,
                       [&](int j, int i) { cached[j] = load<N>(from + i * N); });
  }
  __device__ Pack<T, N> at(int j, int i) const {
    if constexpr (kVecs > 0) {
      return cached[j];
    } else {
      return load<N>(row + i * N);
    }
  }
  const T* row;
  Pack<T, N> cached[kVecs > 0 ? kVecs : 1];
};

// A block's column sums over its rows, for kSums kinds of sum: in registers, or in the block's own
// range of the partials if a thread owns too many columns.
template <class A, int N, int kVecs, int kLanes, int kSums>
class ColumnSums {
 public:
  static_assert(kVecs > 0 || kLanes == 0, "only a whole block may keep its sums in memory");

  // partials: (blocks, kSums, width)
  __device__ ColumnSums(A* partials, int packs)
      : partials_(partials + static_cast<std::int64_t>(blockIdx.x) * kSums * packs * N),
        packs_(packs) {
    if constexpr (kVecs == 0)
      for (int i = static_cast<int>(threadIdx.x); i < packs; i += static_cast<int>(blockDim.x))
        for (int s = 0; s < kSums; ++s)
          for (int k = 0; k < N; ++k) at(s, i, k) = A(0);
  }
  __device__ void add(int s, int j, int i, int k, A value) {
    if constexpr (kVecs > 0) {
      sums_[s][j][k] += value;
    } else {
      at(s, i, k) += value;
    }
  }
  // Must be called once by all threads of the block.
  __device__ void finish() {
    if constexpr (kVecs > 0 && kLanes == 0) {
      for_packs<kVecs>(packs_, Team<0>::lane(), Team<0>::lanes(), [&](int j, int i) {
        for (int s = 0; s < kSums; ++s)
          for (int k = 0; k < N; ++k) at(s, i, k) = sums_[s][j][k];
      });
    } else if constexpr (kVecs > 0) {
      finish_teams();
    }
  }

 private:
  __device__ A& at(int s, int i, int k) { return partials_[(s * packs_ + i) * N + k]; }

  // The teams of a block add their sums one after the other.
  __device__ void finish_teams() {
    KINTSUGI_SHARED(A[kSums][(kVecs > 0 ? kVecs : 1) * (kLanes > 0 ? kLanes : 1) * N], total);
    for (int team = 0; team < Team<kLanes>::count(); ++team) {
      if (team == Team<kLanes>::index())
        for_packs<kVecs>(packs_, Team<kLanes>::lane(), kLanes, [&](int j, int i) {
          for (int s = 0; s < kSums; ++s)
            for (int k = 0; k < N; ++k)
              total[s][i * N + k] = (team == 0 ? A(0) : total[s][i * N + k]) + sums_[s][j][k];
        });
      __syncthreads();
    }
    for (int i = static_cast<int>(threadIdx.x); i < packs_ * N; i += static_cast<int>(blockDim.x))
      for (int s = 0; s < kSums; ++s) partials_[s * packs_ * N + i] = total[s][i];
  }

  A* partials_;
  int packs_;
  A sums_[kSums][kVecs > 0 ? kVecs : 1][N] = {};
};

// Instead of ColumnSums, where nobody needs them.
struct NoColumnSums {
  template <class A>
  __device__ NoColumnSums(A*, int) {}
  template <class A>
  __device__ void add(int, int, int, int, A) {}
  __device__ void finish() {}
};

// ---- maxima of what a norm writes (maxima.cuh)
// The kernels find them for the type of fp8 runs, if a warp has numbers of one row and they fit in
// registers; in a backward beside the column sums, so kVecs is at most 2 there. For others,
// find_maxima() reads the result.
template <class T, int N, int kVecs, int kLanes>
inline constexpr bool kFindsMaxima = N > 1 && kVecs > 0 &&
                                     (kLanes == 0 || kLanes == 32) && std::is_same_v<T, Bf16>;

// A thread keeps the maxima of its columns over all rows of its team.
template <class T, int N, int kVecs, int kLanes>
class NormMaxima {
 public:
  static_assert(kTeamBlock == kStripThreads, "the warps of write_column_maxima()");

  __device__ NormMaxima(const MaximaBits& to, int packs) : to_(to), width_(packs * N) {}
  // Access j of this thread in its row.
  __device__ void include(int j, const Pack<T, N>& written) {
    const Magnitudes<T, N> here(written);
    columns_[j].include(here);
    row_.include(here);
  }
  // Must be called by all threads of the team after each of its rows.
  __device__ void finish_row(std::int64_t row) {
    write_row_maximum(to_.rows + row, row_.largest());
    row_ = {};
  }
  // Must be called once by all threads of the block.
  __device__ void finish() {
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      if constexpr (kLanes == 32) {  // all warps have the same columns
        write_column_maxima(to_.columns, nullptr, columns_[j], j * 32 * N, width_);
      } else {
        write_own_columns(columns_[j], (j * static_cast<int>(blockDim.x) + first_lane()) * N);
      }
    }
  }

 private:
  __device__ static int first_lane() { return static_cast<int>(threadIdx.x) / 32 * 32; }

  // Writes the maxima of the warp's 32 N columns from `first` on, in their order: 32 adjacent ones
  // at a time.
  __device__ void write_own_columns(const Magnitudes<T, N>& columns, int first) {
    // 32 / N more: no bank conflicts
    KINTSUGI_SHARED(unsigned[kRowBlock / 32][N][32 + 32 / N], shared);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = first_lane() / 32;
    sync_team();  // shared may still be read by a previous call
#pragma unroll
    for (int k = 0; k < N; ++k) shared[warp][k][lane] = columns.at(k);
    sync_team();
#pragma unroll
    for (int i = lane; i < 32 * N; i += 32)
      if (first + i < width_) atomicMax(to_.columns + first + i, shared[warp][i % N][i / N]);
  }

  MaximaBits to_;
  int width_;
  Magnitudes<T, N> columns_[kVecs], row_;
};

// Instead of NormMaxima, where nobody needs them.
struct NoMaxima {
  __device__ NoMaxima(const MaximaBits&, int) {}
  template <class P>
  __device__ void include(int, const P&) {}
  __device__ void finish_row(std::int64_t) {}
  __device__ void finish() {}
};

// The launch configuration of a norm.
struct NormGrid {
  int threads;  // of a block
  int teams;    // rows that a block processes at a time
};
template <int kLanes>
inline constexpr int kNormThreads = kLanes > 0 ? kTeamBlock : kRowBlock;

template <int kVecs, int kLanes>
NormGrid norm_grid(int packs) {
  if (kLanes > 0) return {kTeamBlock, kTeamBlock / (kLanes ? kLanes : 1)};
  const int per_thread = kVecs > 0 ? kVecs : ceil_div(packs, kRowBlock);
  return {ceil_div(ceil_div(packs, per_thread), 32) * 32, 1};
}

// Calls launch.template operator()<N, kVecs, kLanes>(packs) with sizes for a row of `width`
// elements. The forward can keep a long row per warp in registers; the backward also needs
// registers for its column sums.
template <class T, class F>
void for_norm_forward(int width, bool aligned, F&& launch) {
  constexpr int N = kVecSize<T>;
  if (!aligned || width % N != 0) {
    if (width <= 4 * kRowBlock) return launch.template operator()<1, 4, 0>(width);
    return launch.template operator()<1, 0, 0>(width);
  }
  const int packs = width / N;
  if (packs <= 8) return launch.template operator()<N, 1, 8>(packs);
  if (packs <= 16) return launch.template operator()<N, 1, 16>(packs);
  if (packs <= 32) return launch.template operator()<N, 1, 32>(packs);
  if (packs <= 128) return launch.template operator()<N, 4, 32>(packs);
  if (packs <= 256) return launch.template operator()<N, 8, 32>(packs);
  if (packs <= 4 * kRowBlock) return launch.template operator()<N, 4, 0>(packs);
  return launch.template operator()<N, 0, 0>(packs);
}

template <class T, int kVecsPerWarp, class F>
void for_norm_backward(int width, bool aligned, F&& launch) {
  constexpr int N = kVecSize<T>;
  if (!aligned || width % N != 0) {
    if (width <= 4 * kRowBlock) return launch.template operator()<1, 4, 0>(width);
    return launch.template operator()<1, 0, 0>(width);
  }
  const int packs = width / N;
  if (packs <= 8) return launch.template operator()<N, 1, 8>(packs);
  if (packs <= 16) return launch.template operator()<N, 1, 16>(packs);
  if (packs <= 32) return launch.template operator()<N, 1, 32>(packs);
  if constexpr (kVecsPerWarp > 1)
    if (packs <= 32 * kVecsPerWarp) return launch.template operator()<N, kVecsPerWarp, 32>(packs);
  if (packs <= 2 * kRowBlock) return launch.template operator()<N, 2, 0>(packs);
  if (packs <= 4 * kRowBlock) return launch.template operator()<N, 4, 0>(packs);
  return launch.template operator()<N, 0, 0>(packs);
}

// The number of blocks of a backward, or of a forward with maxima: as many as are resident on the
// device at once, so that all get the same number of rows and there are few partial sums.
template <class Kernel>
int resident_blocks(const Context& context, Kernel kernel, std::int64_t rows,
                    const NormGrid& grid) {
  const int resident = resident_blocks(reinterpret_cast<const void*>(kernel), grid.threads);
  return static_cast<int>(std::min<std::int64_t>(ceil_div<std::int64_t>(rows, grid.teams),
                                                 context.multiprocessors * std::max(1, resident)));
}

// The number of blocks whose teams have one row each.
template <int kVecs, int kLanes>
unsigned norm_blocks(std::int64_t rows, int packs) {
  return static_cast<unsigned>(ceil_div<std::int64_t>(rows, norm_grid<kVecs, kLanes>(packs).teams));
}

// Calls launch.template operator()<true>() for a kernel that also finds the maxima of its result,
// which must be wanted and possible, otherwise <false>; then finds the maxima that are wanted.
template <bool kPossible, class F>
void launch_with_maxima(const Context& context, const Tensor& result, const Maxima& maxima,
                        F&& launch) {
  if constexpr (kPossible)
    if (maxima) {
      clear_maxima(context, maxima);
      return launch.template operator()<true>();
    }
  launch.template operator()<false>();
  if (maxima) find_maxima(context, maxima, result);
}

// Launches a forward with maxima. It follows their memset, which nothing overlaps.
template <int kVecs, int kLanes, class P>
void launch_resident(const Context& context, void (*kernel)(P, int), const P& p, int packs) {
  const NormGrid grid = norm_grid<kVecs, kLanes>(packs);
  const int blocks = resident_blocks(context, kernel, p.rows, grid);
  launch_kernel(context.stream, kernel, blocks, grid.threads, 0, p, packs);
}

}  // namespace kintsugi::gpu
