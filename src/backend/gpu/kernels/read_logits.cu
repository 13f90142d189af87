// What generation reads of logits: the largest, their log-sum-exp, and the logit of a target.
// Blocks read chunks of a row; a warp then merges the chunks of each row. The chunks are the same
// for any number of rows, and so are the sums.
#include <cmath>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kFew = 32;  // the most values that are found without sorting the whole chunk
template <class T>
constexpr int kPerThread = sizeof(T) == 8 ? 8 : 16;
template <class T>
constexpr int kChunk = kThreads* kPerThread<T>;

// NaN is never among the largest.
template <class A>
__device__ inline A or_smallest(A x) {
  return isnan(x) ? A(-INFINITY) : x;
}
// The order of the results: larger values first, of equals the first column.
template <class A>
__device__ inline bool before(A a, int column_a, A b, int column_b) {
  return a > b || (a == b && column_a < column_b);
}

// What the blocks find in their chunks: per row and chunk the largest `n` values with their
// columns, in order, and the sum of exp(x - largest), NaN if there is a NaN.
template <class A>
struct Chunks {
  A *values, *largest, *sums;
  std::int32_t* columns;
  int chunks, n;

  __device__ std::int64_t at(int row, int chunk) const {
    return static_cast<std::int64_t>(row) * chunks + chunk;
  }
};

template <class T>
struct ChunkShared {
  Acc<T> values[kChunk<T>];
  int columns[kChunk<T>];
  Acc<T> scratch[32], group_largest[kFew];
  int candidates;
};

// Thread i has kPerThread elements of the chunk: packs i, i + kThreads, …
template <class T, int N>
struct Elements {
  using A = Acc<T>;
  static constexpr int kPacks = kPerThread<T> / N;
  A value[kPerThread<T>];

  // Elements behind the row are NaN, which nothing counts; `nan` reports those of the row.
  __device__ void read(const T* row, int first, int columns, bool& nan) {
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int at = column(first, j * N);
      Pack<T, N> pack;
      if (at < columns) pack = load<N>(row + at);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        value[j * N + k] = at < columns ? up(pack.v[k]) : A(NAN);
        nan = nan || (at < columns && isnan(value[j * N + k]));
      }
    }
  }
  __device__ static int column(int first, int element) {
    return first + (element / N * kThreads + static_cast<int>(threadIdx.x)) * N + element % N;
  }
};

// A value that at least n elements of the chunk reach: the n-th largest of the largest elements of
// 32 groups of threads.
template <class T>
__device__ inline Acc<T> bound_of(ChunkShared<T>& shared, Acc<T> largest, int n) {
  using A = Acc<T>;
  A group = largest;
#pragma unroll
  for (int offset = 1; offset < 8; offset *= 2) group = max(group, shuffle_xor(group, offset));
  if (threadIdx.x % 8 == 0) shared.group_largest[threadIdx.x / 8] = group;
  if (threadIdx.x == 0) shared.candidates = 0;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const A mine = shared.group_largest[lane];
  int rank = 0;
#pragma unroll
  for (int other = 0; other < kFew; ++other)
    rank += before(shared.group_largest[other], other, mine, lane) ? 1 : 0;
  const unsigned found = ballot(rank == n - 1);
  return shuffle(mine, __ffs(static_cast<int>(found)) - 1);
}

// Sorts `count` candidates, padded to a power of two.
template <class T>
__device__ inline void sort_candidates(ChunkShared<T>& shared, int count) {
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    shared.values[i] = -INFINITY;
    shared.columns[i] = 0x7fffffff;
  }
  __syncthreads();
  for (int block = 2; block <= size; block *= 2)
    for (int distance = block / 2; distance > 0; distance /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
        const int a = 2 * i - (i & (distance - 1)), b = a + distance;
        const bool ascending = (a & block) == 0;
        if (before(shared.values[b], shared.columns[b], shared.values[a], shared.columns[a]) ==
            ascending) {
          const Acc<T> value = shared.values[a];
          const int column = shared.columns[a];
          shared.values[a] = shared.values[b], shared.columns[a] = shared.columns[b];
          shared.values[b] = value, shared.columns[b] = column;
        }
      }
      __syncthreads();
    }
}

// Blocks (chunk, row).
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    chunk_kernel(Chunks<Acc<T>> found, const T* logits, std::int64_t stride, int columns) {
  using A = Acc<T>;
  KINTSUGI_SHARED(ChunkShared<T>, shared);
  allow_next();
  wait_for_previous();
  const int chunk = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const int first = chunk * kChunk<T>, here = min(kChunk<T>, columns - first);
  Elements<T, N> x;
  bool nan = false;
  x.read(logits + row * stride, first, columns, nan);
  A mine = -INFINITY;
#pragma unroll
  for (const A value : x.value) mine = max(mine, or_smallest(value));
  const int n = min(found.n, here);
  const A bound = n <= kFew ? bound_of<T>(shared, mine, n) : A(-INFINITY);
  if (n > kFew) {
    if (threadIdx.x == 0) shared.candidates = 0;
    const A warp = warp_max(mine);
    if (threadIdx.x % 32 == 0) shared.group_largest[threadIdx.x / 32] = warp;
    if (threadIdx.x >= kThreads / 32 && threadIdx.x < kFew)
      shared.group_largest[threadIdx.x] = -INFINITY;
    __syncthreads();
  }
  const A largest = warp_max(shared.group_largest[threadIdx.x % kFew]);
  const A base = largest == A(-INFINITY) ? A(0) : largest;
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kPerThread<T>; ++i) {
    const int column = Elements<T, N>::column(first, i);
    if (column >= columns) continue;
    const A value = or_smallest(x.value[i]);
    // Full precision: sums of 16-bit logits are in fp32.
    sum += exp_of<A>(value - base);
    if (value >= bound) {
      const int slot = atomicAdd(&shared.candidates, 1);
      shared.values[slot] = value;
      shared.columns[slot] = column;
    }
  }
  sum = block_sum(nan ? A(NAN) : sum, shared.scratch);
  const int candidates = shared.candidates;  // block_sum has synchronized
  sort_candidates(shared, candidates);
  const std::int64_t at = found.at(row, chunk);
  for (int i = static_cast<int>(threadIdx.x); i < found.n; i += kThreads) {
    found.values[at * found.n + i] = i < n ? shared.values[i] : A(-INFINITY);
    found.columns[at * found.n + i] = i < n ? shared.columns[i] : 0x7fffffff;
  }
  if (threadIdx.x == 0) {
    found.largest[at] = largest;
    found.sums[at] = sum;
  }
}

template <class A>
struct RowResults {
  A *values, *log_sum, *chosen;
  std::int32_t* ids;
  std::int64_t value_stride, id_stride;
  const std::int32_t* targets;
  int n, first_column;
};

// One warp per row. Lane l has the chunks l, l + 32, … and the next value of each.
template <class T>
__global__ void __launch_bounds__(32)
    merge_kernel(RowResults<Acc<T>> to, Chunks<Acc<T>> found, const T* logits, std::int64_t stride,
                 int columns) {
  using A = Acc<T>;
  int* const next = reinterpret_cast<int*>(dynamic_shared());  // (chunks)
  allow_next();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  A largest = -INFINITY;
  for (int c = lane; c < found.chunks; c += 32) {
    next[c] = 0;
    largest = max(largest, found.largest[found.at(row, c)]);
  }
  largest = warp_max(largest);
  double sum = 0;
  for (int c = lane; c < found.chunks; c += 32) {
    const std::int64_t at = found.at(row, c);
    sum += static_cast<double>(found.sums[at]) *
           exp(static_cast<double>(found.largest[at]) - static_cast<double>(largest));
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    to.log_sum[row] = static_cast<A>(static_cast<double>(largest) + log(sum));
    if (to.targets != nullptr) {
      const int column = to.targets[row] - to.first_column;
      to.chosen[row] =
          column >= 0 && column < columns ? up(logits[row * stride + column]) : A(-INFINITY);
    }
  }
  A value = -INFINITY;
  int column = 0x7fffffff, chunk = -1;
  const auto choose = [&] {
    value = -INFINITY, column = 0x7fffffff, chunk = -1;
    for (int c = lane; c < found.chunks; c += 32) {
      if (next[c] == found.n) continue;
      const std::int64_t at = found.at(row, c) * found.n + next[c];
      if (chunk < 0 || before(found.values[at], found.columns[at], value, column))
        value = found.values[at], column = found.columns[at], chunk = c;
    }
  };
  choose();
  for (int i = 0; i < to.n; ++i) {
    A best = value;
    int best_column = column;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const A other = shuffle_xor(best, offset);
      const int other_column = shuffle_xor(best_column, offset);
      if (before(other, other_column, best, best_column)) best = other, best_column = other_column;
    }
    if (lane == 0) {
      to.values[row * to.value_stride + i] = best;
      to.ids[row * to.id_stride + i] = to.first_column + best_column;
    }
    if (chunk >= 0 && column == best_column) {
      ++next[chunk];
      choose();
    }
  }
}

}  // namespace

void read_logits(const Context& context, Tensor values, Tensor ids, Tensor log_sum, Tensor chosen,
                 Tensor logits, Tensor targets, std::int64_t first_column) {
  const std::int64_t rows = logits.extent(0), columns = logits.extent(1), n = values.extent(1);
  KINTSUGI_CHECK(columns + first_column < (std::int64_t{1} << 31) - 1 && rows < 65536,
                 "read_logits of {}, whose first column is {}", to_string(logits.shape()),
                 first_column);
  if (logits.elements() == 0) return;
  visit_device_float(logits.dtype(), [&]<class T>() {
    using A = Acc<T>;
    const std::int64_t chunks = ceil_div<std::int64_t>(columns, kChunk<T>),
                       kept = std::min<std::int64_t>(n, kChunk<T>), parts = rows * chunks;
    auto* memory = static_cast<std::byte*>(context.workspace.get(
        static_cast<std::size_t>(parts) * ((kept + 2) * sizeof(A) + kept * sizeof(std::int32_t)),
        context.stream));
    A* numbers = reinterpret_cast<A*>(memory);
    const Chunks<A> found = {
        .values = numbers,
        .largest = numbers + parts * kept,
        .sums = numbers + parts * (kept + 1),
        .columns = reinterpret_cast<std::int32_t*>(numbers + parts * (kept + 2)),
        .chunks = static_cast<int>(chunks),
        .n = static_cast<int>(kept)};
    const RowResults<A> to = {.values = data_of<A>(values),
                              .log_sum = data_of<A>(log_sum),
                              .chosen = data_of<A>(chosen),
                              .ids = data_of<std::int32_t>(ids),
                              .value_stride = values.stride(0),
                              .id_stride = ids.stride(0),
                              .targets = data_of<std::int32_t>(targets),
                              .n = static_cast<int>(n),
                              .first_column = static_cast<int>(first_column)};
    const T* x = data_of<T>(logits);
    const bool aligned = rows_of<T>(logits).aligned() && columns % kVecSize<T> == 0;
    const auto kernel = aligned ? chunk_kernel<T, kVecSize<T>> : chunk_kernel<T, 1>;
    launch_overlapped(context, kernel,
                      dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(rows)), kThreads, 0,
                      found, x, logits.stride(0), static_cast<int>(columns));
    launch_overlapped(context, merge_kernel<T>, static_cast<unsigned>(rows), 32,
                      static_cast<std::size_t>(chunks) * sizeof(int), to, found, x,
                      logits.stride(0), static_cast<int>(columns));
  });
}

}  // namespace kintsugi::gpu
