// Table look-up and its gradient. The gradient sorts the tokens by table row (a stable radix sort
// with 9 bits per pass), so that all tokens of a row are adjacent and in order. Each row is then
// summed by one warp or block, without atomics.
#include <algorithm>
#include <bit>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

// The table row of each token; `rows` if the id is not in this table.
struct TableRows {
  const std::int32_t* ids;
  unsigned first, rows;

  __device__ int operator[](int token) const {
    // Wraps to a large number if the id is below `first`.
    const unsigned row = static_cast<unsigned>(ids[token]) - first;
    return static_cast<int>(row < rows ? row : rows);
  }
};

TableRows table_rows(const Tensor& ids, const Tensor& table, std::int64_t first_row) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  KINTSUGI_CHECK(first_row >= 0 && first_row + table.extent(0) < kLimit, "embedding rows {} to {}",
                 first_row, first_row + table.extent(0));
  return {data_of<std::int32_t>(ids), static_cast<unsigned>(first_row),
          static_cast<unsigned>(table.extent(0))};
}

template <class T, int N>
__global__ void __launch_bounds__(256)
    forward_kernel(RowView<T> out, TableRows ids, RowView<const T> table, int width,
                   bool accumulate) {
  allow_next();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (i >= width) return;
  T* to = out[blockIdx.x] + i;
  const int row = ids[static_cast<int>(blockIdx.x)];
  const bool in_table = row < static_cast<int>(ids.rows);
  if (accumulate && !in_table) return;
  Pack<T, N> value = {};
  if (in_table) value = load<N>(table[row] + i);
  if (accumulate) {
    const Pack<T, N> old = load<N>(to);
#pragma unroll
    for (int k = 0; k < N; ++k) value.v[k] = down<T>(up(old.v[k]) + up(value.v[k]));
  }
  store(to, value);
}

template <class T, int N>
void launch_forward(const Context& context, const Tensor& out, const TableRows& ids,
                    const Tensor& table, bool accumulate) {
  const RowGrid grid(out.extent(0), out.extent(1) / N);
  launch_overlapped(context, forward_kernel<T, N>, grid.blocks, grid.threads, 0, rows_of<T>(out),
                    ids, rows_of<const T>(table), static_cast<int>(out.extent(1)), accumulate);
}

// ---- rows to given rows: blocks (row, range of its packs). The words of T are only copied.
template <class T, int N>
__global__ void __launch_bounds__(256)
    scatter_rows_kernel(T* to, std::int64_t to_row, std::int64_t to_head, const T* from,
                        std::int64_t from_row, std::int64_t from_head, const std::int32_t* rows,
                        int packs, int row_packs) {
  allow_next();
  wait_for_previous();
  const int index = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int row = rows[blockIdx.x];
  if (index >= row_packs || row < 0) return;
  const int head = index / packs, i = index % packs * N;
  store(to + row * to_row + head * to_head + i,
        load<N>(from + blockIdx.x * from_row + head * from_head + i));
}

template <class T, int N>
void launch_scatter(const Context& context, const Tensor& to, const Tensor& from,
                    const std::int32_t* rows) {
  const int packs = static_cast<int>(from.extent(2) / N),
            row_packs = packs * static_cast<int>(from.extent(1));
  const RowGrid grid(from.extent(0), row_packs);
  launch_overlapped(context, scatter_rows_kernel<T, N>, grid.blocks, grid.threads, 0,
                    static_cast<T*>(to.data()), to.stride(0), to.stride(1),
                    static_cast<const T*>(from.data()), from.stride(0), from.stride(1), rows, packs,
                    row_packs);
}

// ---- the sort: order[i] is the token at sorted index i
constexpr int kDigitBits = 9;  // two passes for vocabularies up to 262144
constexpr int kDigits = 1 << kDigitBits;
constexpr int kSortWarps = 8;
constexpr int kSortThreads = 32 * kSortWarps;
constexpr int kPerThread = 8;
constexpr int kTile = kSortThreads * kPerThread;  // tokens a block sorts
constexpr int kPerWarp = 32 * kPerThread;

// The token at index i before this pass. order is nullptr in the first pass: token i.
__device__ inline int token_at(const std::int32_t* order, int i) {
  return order == nullptr ? i : order[i];
}
__device__ inline int digit_of(int row, int shift) {
  return (static_cast<unsigned>(row) >> shift) % kDigits;
}

// counts[digit * blocks + block]
__global__ void __launch_bounds__(kSortThreads)
    count_kernel(int* counts, const std::int32_t* order, TableRows ids, int tokens, int shift) {
  KINTSUGI_SHARED(int[kDigits], histogram);
  const int thread = static_cast<int>(threadIdx.x);
  for (int digit = thread; digit < kDigits; digit += kSortThreads) histogram[digit] = 0;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int i = static_cast<int>(blockIdx.x) * kTile + k * kSortThreads + thread;
    if (i < tokens) atomicAdd(&histogram[digit_of(ids[token_at(order, i)], shift)], 1);
  }
  __syncthreads();
  for (int digit = thread; digit < kDigits; digit += kSortThreads)
    counts[digit * gridDim.x + blockIdx.x] = histogram[digit];
}

// Exclusive prefix sum of counts, in place: one block of 1024 threads with four counts each at a
// time. n must be a multiple of 4.
__global__ void __launch_bounds__(1024) scan_kernel(int* counts, int n) {
  KINTSUGI_SHARED(int[32], warps);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  int carry = 0;
  for (int begin = 0; begin < n; begin += 4 * 1024) {
    const int i = begin + 4 * thread;
    Pack<int, 4> value = {};
    if (i < n) value = load<4>(counts + i);
    const int own = value.v[0] + value.v[1] + value.v[2] + value.v[3];
    int inclusive = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int left = shuffle_up(inclusive, offset);
      if (lane >= offset) inclusive += left;
    }
    if (lane == 31) warps[warp] = inclusive;
    __syncthreads();
    int before = carry + inclusive - own, total = 0;
    for (int w = 0; w < 32; ++w) {
      before += w < warp ? warps[w] : 0;
      total += warps[w];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int next = before + value.v[k];
      value.v[k] = before;
      before = next;
    }
    if (i < n) store(counts + i, value);
    carry += total;
    __syncthreads();
  }
}

// Each warp moves kPerWarp consecutive tokens; equal digits keep their order.
__global__ void __launch_bounds__(kSortThreads)
    scatter_kernel(std::int32_t* sorted, const std::int32_t* order, TableRows ids,
                   const int* starts, int tokens, int shift) {
  KINTSUGI_SHARED(int[kSortWarps][kDigits], next);  // the index of a warp's next token with a digit
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int begin = static_cast<int>(blockIdx.x) * kTile + warp * kPerWarp;
  for (int d = lane; d < kDigits; d += 32) next[warp][d] = 0;
  sync_team();
  int token[kPerThread], digit[kPerThread];
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int i = begin + k * 32 + lane;
    token[k] = i < tokens ? token_at(order, i) : -1;
    digit[k] = i < tokens ? digit_of(ids[token[k]], shift) : -1;
    if (i < tokens) atomicAdd(&next[warp][digit[k]], 1);
  }
  __syncthreads();
  for (int d = thread; d < kDigits; d += kSortThreads) {
    int index = starts[d * gridDim.x + blockIdx.x];
    for (int w = 0; w < kSortWarps; ++w) {
      const int count = next[w][d];
      next[w][d] = index;
      index += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const unsigned peers = match_any(digit[k]);
    const int rank = __popc(peers & ((1u << lane) - 1));
    int first = 0;
    if (digit[k] >= 0) first = next[warp][digit[k]];
    sync_team();
    if (digit[k] >= 0 && rank == 0) next[warp][digit[k]] = first + __popc(peers);
    sync_team();
    if (digit[k] >= 0) sorted[first + rank] = token[k];
  }
}

// The tokens in order of their table rows; tokens that are not in the table are last.
const std::int32_t* sort_by_row(const Context& context, const TableRows& ids, int tokens) {
  const int blocks = ceil_div(tokens, kTile);
  const std::size_t aligned_tokens = static_cast<std::size_t>(ceil_div(tokens, 4) * 4);
  std::int32_t* memory = context.workspace.get<std::int32_t>(
      2 * aligned_tokens + std::size_t{kDigits} * blocks, context.stream);
  std::int32_t* const buffers[2] = {memory, memory + aligned_tokens};
  int* counts = memory + 2 * aligned_tokens;
  const int bits = std::max(1, static_cast<int>(std::bit_width(ids.rows)));
  const std::int32_t* order = nullptr;
  for (int shift = 0, pass = 0; shift < bits; shift += kDigitBits, ++pass) {
    launch_kernel(context.stream, count_kernel, blocks, kSortThreads, 0, counts, order, ids, tokens,
                  shift);
    launch_kernel(context.stream, scan_kernel, 1, 1024, 0, counts, kDigits * blocks);
    launch_kernel(context.stream, scatter_kernel, blocks, kSortThreads, 0, buffers[pass % 2], order,
                  ids, counts, tokens, shift);
    order = buffers[pass % 2];
  }
  return order;
}

// ---- the sums
constexpr int kSumWarps = 8;
constexpr int kShort =
    32;  // longer groups of tokens with the same id are summed by the whole block

// Adds dout of the tokens order[begin], order[begin + step], … up to order[end - 1], in this order.
template <class T, int N>
__device__ inline void add_group(Acc<T> (&sums)[N], const T* dout, std::int64_t stride,
                                 const std::int32_t* order, int begin, int end, int step) {
  constexpr int kAhead = 4;  // loads in flight
  int index = begin;
  for (; index + (kAhead - 1) * step < end; index += kAhead * step) {
    Pack<T, N> packs[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) packs[a] = load<N>(dout + order[index + a * step] * stride);
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += up(packs[a].v[k]);
  }
  for (; index < end; index += step) {
    const Pack<T, N> pack = load<N>(dout + order[index] * stride);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[k] += up(pack.v[k]);
  }
}

template <class A, int N>
__device__ inline void add_to_row(A* to, const A (&sums)[N]) {
  Pack<A, N> row = load<N>(to);
#pragma unroll
  for (int k = 0; k < N; ++k) row.v[k] += sums[k];
  store(to, row);
}

// Blocks (8 sorted tokens, 32 packs of columns). A group is all tokens with the same id. A warp
// whose token is the first of a group sums the group. A group longer than kShort is summed by the
// whole block; of 8 consecutive tokens at most one can be the first of such a group.
template <class T, int N>
__global__ void __launch_bounds__(32 * kSumWarps)
    backward_kernel(RowView<Acc<T>> dtable, TableRows ids, const std::int32_t* order, const T* dout,
                    std::int64_t stride, int tokens, int width) {
  using A = Acc<T>;
  static_assert(kShort >= kSumWarps);
  KINTSUGI_SHARED(int, long_group);  // the index of its first token; -1: none
  KINTSUGI_SHARED(A[kSumWarps][32 * N], shared);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int column = (static_cast<int>(blockIdx.y) * 32 + lane) * N;
  const bool active = column < width;
  if (threadIdx.x == 0) long_group = -1;
  __syncthreads();

  const int index = static_cast<int>(blockIdx.x) * kSumWarps + warp;
  const int beyond_table = static_cast<int>(ids.rows);
  const int id = index < tokens ? ids[order[index]] : beyond_table;
  if (id != beyond_table && (index == 0 || ids[order[index - 1]] != id)) {
    // Lane l compares token index + 1 + l: the group ends at the first lane whose id differs.
    const int ahead = index + 1 + lane;
    const unsigned same = ballot(ahead < tokens && ids[order[ahead]] == id);
    const int length = same == ~0u ? kShort + 1 : __ffs(static_cast<int>(~same));
    if (length > kShort) {
      if (lane == 0) long_group = index;
    } else if (active) {
      A sums[N] = {};
      add_group<T, N>(sums, dout + column, stride, order, index, index + length, 1);
      add_to_row<A, N>(dtable[id] + column, sums);
    }
  }
  __syncthreads();
  if (long_group < 0) return;

  const int begin = long_group;
  const int long_id = ids[order[begin]];
  int end = begin + kShort, beyond = tokens;  // end is inside the group, beyond is not
  while (beyond - end > 1) {
    const int middle = end + (beyond - end) / 2;
    (ids[order[middle]] == long_id ? end : beyond) = middle;
  }
  A sums[N] = {};
  if (active) add_group<T, N>(sums, dout + column, stride, order, begin + warp, beyond, kSumWarps);
#pragma unroll
  for (int k = 0; k < N; ++k) shared[warp][lane * N + k] = sums[k];
  __syncthreads();
  if (warp != 0 || !active) return;
#pragma unroll
  for (int k = 0; k < N; ++k)
    for (int w = 1; w < kSumWarps; ++w) sums[k] += shared[w][lane * N + k];
  add_to_row<A, N>(dtable[long_id] + column, sums);
}

template <class T, int N>
void launch_backward(const Context& context, const Tensor& dtable, const TableRows& ids,
                     const std::int32_t* order, const Tensor& dout) {
  const int tokens = static_cast<int>(dout.extent(0)), width = static_cast<int>(dout.extent(1));
  const dim3 blocks(static_cast<unsigned>(ceil_div(tokens, kSumWarps)),
                    static_cast<unsigned>(ceil_div(width, 32 * N)));
  launch_kernel(context.stream, backward_kernel<T, N>, blocks, 32 * kSumWarps, 0,
                rows_of<Acc<T>>(dtable), ids, order, data_of<T>(dout), dout.stride(0), tokens,
                width);
}

}  // namespace

void embedding_forward(const Context& context, Tensor out, Tensor ids, Tensor table,
                       bool accumulate, std::int64_t first_row) {
  if (out.elements() == 0) return;
  const TableRows rows = table_rows(ids, table, first_row);
  visit_device_float(out.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(out).aligned() && rows_of<T>(table).aligned() && out.extent(1) % N == 0)
      launch_forward<T, N>(context, out, rows, table, accumulate);
    else
      launch_forward<T, 1>(context, out, rows, table, accumulate);
  });
}

void scatter_rows(const Context& context, Tensor destination, Tensor x, Tensor rows) {
  if (x.elements() == 0) return;
  const std::int32_t* to = data_of<std::int32_t>(rows);
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(destination).aligned() && rows_of<T>(x).aligned() && x.extent(2) % N == 0)
      launch_scatter<T, N>(context, destination, x, to);
    else
      launch_scatter<T, 1>(context, destination, x, to);
  });
}

void embedding_backward(const Context& context, Tensor dtable, Tensor ids, Tensor dout,
                        std::int64_t first_row) {
  if (dout.elements() == 0) return;
  const TableRows rows = table_rows(ids, dtable, first_row);
  const std::int32_t* order = sort_by_row(context, rows, static_cast<int>(dout.extent(0)));
  visit_device_float(dout.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(dout).aligned() && rows_of<Acc<T>>(dtable).aligned() && dout.extent(1) % N == 0)
      launch_backward<T, N>(context, dtable, rows, order, dout);
    else
      launch_backward<T, 1>(context, dtable, rows, order, dout);
  });
}

}  // namespace kintsugi::gpu
