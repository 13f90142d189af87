// Rotary position embedding: rotates pairs of elements of a head, (i, i + dim / 2) or (2i, 2i + 1).
#include <algorithm>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/maxima.cuh"

namespace kintsugi::gpu {
namespace {

// Rotates N pairs; direction -1: back.
template <class T, int N>
__device__ inline void rotate(Pack<T, N>& a, Pack<T, N>& b, const Pack<Acc<T>, N>& c,
                              const Pack<Acc<T>, N>& s, Acc<T> direction) {
  using A = Acc<T>;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A x = up(a.v[k]), y = up(b.v[k]), sine = direction * s.v[k];
    a.v[k] = down<T>(x * c.v[k] - y * sine);
    b.v[k] = down<T>(y * c.v[k] + x * sine);
  }
}

// One block per token: its heads use the same row of the table. Pair i is element i * step and the
// element `distance` after it; N pairs at a time if step is 1.
template <class T, int N>
__global__ void __launch_bounds__(256)
    rope_kernel(T* x, std::int64_t token_stride, std::int64_t head_stride, int heads, int half,
                int step, int distance, const Acc<T>* table, const std::int32_t* positions,
                Acc<T> direction) {
  using A = Acc<T>;
  allow_next();
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  const A* cosine = table + static_cast<std::int64_t>(positions[token]) * (2 * half);
  const A* sine = cosine + half;
  const int packs = half / N;
  for (int index = static_cast<int>(threadIdx.x); index < heads * packs;
       index += static_cast<int>(blockDim.x)) {
    const int head = index / packs, i = index % packs * N;
    T* low = x + token * token_stride + head * head_stride + i * step;
    T* high = low + distance;
    Pack<T, N> a = load<N>(low), b = load<N>(high);
    rotate(a, b, load<N>(cosine + i), load<N>(sine + i), direction);
    store(low, a);
    store(high, b);
  }
}

template <class T, int N>
void launch(const Context& context, const Tensor& x, const Acc<T>* table,
            const std::int32_t* positions, bool inverse, RopePairs pairs) {
  const int heads = static_cast<int>(x.extent(1)), half = static_cast<int>(x.extent(2) / 2);
  const int threads = std::min(256, ceil_div(heads * (half / N), 32) * 32);
  launch_overlapped(context, rope_kernel<T, N>, static_cast<unsigned>(x.extent(0)), threads, 0,
                    data_of<T>(x), x.stride(0), x.stride(1), heads, half,
                    pairs == RopePairs::Halves ? 1 : 2, pairs == RopePairs::Halves ? half : 1,
                    table, positions, Acc<T>(inverse ? -1 : 1));
}

// ---- the backward in strips (maxima.cuh), with the maxima of all columns
constexpr int kRowsAtOnce = 2;  // of a thread: four loads before the first use, and the table's

template <class T>
struct RopeBackward {
  Matrix<T> x;
  MaximaBits maxima;
  const Acc<T>* table;
  const std::int32_t* positions;
  int half, rotated;  // of a head, of x: columns
  // -1. As a constant, the compiler might round another product than in rope_kernel.
  Acc<T> direction;

  // The first of the N columns of a unit; the others of its pairs are at distance `half`.
  template <int N>
  __device__ int column(int unit) const {
    const int packs = half / N;
    return unit / packs * 2 * half + unit % packs * N;
  }
};

// A panel has 32 units of N pairs.
template <class T, int N>
__global__ void __launch_bounds__(kStripThreads, 3)
    rope_backward_kernel(RopeBackward<T> p, StripSize size) {
  using A = Acc<T>;
  allow_next();
  const StripThread<N> first(size.strip_rows);
  const int column = p.template column<N>(first.column / N), in_head = column % (2 * p.half);
  const bool inside = column < size.width, turns = column < p.rotated;
  Magnitudes<T, N> low_columns, high_columns;
  for (int i = 0; i < size.strip_rows; i += kStripWarps * kRowsAtOnce) {
    Pack<T, N> low[kRowsAtOnce] = {}, high[kRowsAtOnce] = {};
    Pack<A, N> cosine[kRowsAtOnce] = {}, sine[kRowsAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (!inside || row >= size.rows) continue;
      low[r] = load<N>(p.x.at(row, column));
      high[r] = load<N>(p.x.at(row, column + p.half));
      if (!turns) continue;
      const A* angles = p.table + static_cast<std::int64_t>(p.positions[row]) * (2 * p.half);
      cosine[r] = load<N>(angles + in_head);
      sine[r] = load<N>(angles + p.half + in_head);
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (row >= size.rows) continue;
      if (turns) {
        rotate(low[r], high[r], cosine[r], sine[r], p.direction);
        store(p.x.at(row, column), low[r]);
        store(p.x.at(row, column + p.half), high[r]);
      }
      const Magnitudes<T, N> in_low(low[r]), in_high(high[r]);
      low_columns.include(in_low);
      high_columns.include(in_high);
      write_row_maximum(p.maxima.rows + row, max(in_low.largest(), in_high.largest()));
    }
  }
  const unsigned of_low = panel_maximum(low_columns), of_high = panel_maximum(high_columns);
  // Thread i has column i of the panel: one of unit i / N.
  const int i = static_cast<int>(threadIdx.x),
            to = p.template column<N>(first.panel / N + i / N) + i % N;
  if (i >= 32 * N || to >= size.width) return;
  atomicMax(p.maxima.columns + to, of_low);
  atomicMax(p.maxima.columns + to + p.half, of_high);
}

// The operands of rope_store; all heads of a token are at strides `head`.
template <class T>
struct RopeStore {
  T *q, *k;
  const T* v;
  std::int64_t q_token, k_token, v_token, q_head, k_head, v_head;
  T *keys, *values;
  std::int64_t key_row, value_row, key_head, value_head;
  const std::int32_t *rows, *positions;
  const Acc<T>* table;  // nullptr: no rotation
  int heads, kv_heads, half;
};

// One block per token. A thread rotates N pairs of a query or key, or copies N elements of a value.
template <class T, int N>
__global__ void __launch_bounds__(256) rope_store_kernel(RopeStore<T> p) {
  using A = Acc<T>;
  allow_next();
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  const int row = p.rows[token], packs = p.half / N;
  const A* cosine = nullptr;
  if (p.table != nullptr)
    cosine = p.table + static_cast<std::int64_t>(p.positions[token]) * (2 * p.half);
  const int rotated = (p.heads + p.kv_heads) * packs;
  for (int index = static_cast<int>(threadIdx.x); index < rotated + p.kv_heads * packs;
       index += static_cast<int>(blockDim.x)) {
    const int head = index / packs, i = index % packs * N, kv_head = head - p.heads;
    if (index >= rotated) {
      const int v_head = kv_head - p.kv_heads;
      const T* from = p.v + token * p.v_token + v_head * p.v_head + i;
      T* to = p.values + row * p.value_row + v_head * p.value_head + i;
      if (row >= 0) {
        store(to, load<N>(from));
        store(to + p.half, load<N>(from + p.half));
      }
      continue;
    }
    T* low = (kv_head < 0 ? p.q + token * p.q_token + head * p.q_head
                          : p.k + token * p.k_token + kv_head * p.k_head) +
             i;
    Pack<T, N> a = load<N>(low), b = load<N>(low + p.half);
    if (cosine != nullptr) {
      const Pack<A, N> c = load<N>(cosine + i), s = load<N>(cosine + p.half + i);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const A x = up(a.v[n]), y = up(b.v[n]);
        a.v[n] = down<T>(x * c.v[n] - y * s.v[n]);
        b.v[n] = down<T>(y * c.v[n] + x * s.v[n]);
      }
      store(low, a);
      store(low + p.half, b);
    }
    if (kv_head >= 0 && row >= 0) {
      T* to = p.keys + row * p.key_row + kv_head * p.key_head + i;
      store(to, a);
      store(to + p.half, b);
    }
  }
}

}  // namespace

void rope_store(const Context& context, Tensor keys, Tensor values, Tensor q, Tensor k, Tensor v,
                Tensor rows, Tensor table, Tensor positions) {
  if (q.elements() == 0) return;
  visit_device_float(q.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    bool aligned = q.extent(2) / 2 % N == 0 && aligned16(table.data());
    for (const Tensor& x : {q, k, v, keys, values}) aligned = aligned && rows_of<T>(x).aligned();
    if (!aligned) {
      if (table) rope(context, q, table, positions, false, RopePairs::Halves);
      if (table) rope(context, k, table, positions, false, RopePairs::Halves);
      scatter_rows(context, keys, k, rows);
      return scatter_rows(context, values, v, rows);
    }
    const RopeStore<T> p = {.q = data_of<T>(q),
                            .k = data_of<T>(k),
                            .v = data_of<T>(v),
                            .q_token = q.stride(0),
                            .k_token = k.stride(0),
                            .v_token = v.stride(0),
                            .q_head = q.stride(1),
                            .k_head = k.stride(1),
                            .v_head = v.stride(1),
                            .keys = data_of<T>(keys),
                            .values = data_of<T>(values),
                            .key_row = keys.stride(0),
                            .value_row = values.stride(0),
                            .key_head = keys.stride(1),
                            .value_head = values.stride(1),
                            .rows = data_of<std::int32_t>(rows),
                            .positions = data_of<std::int32_t>(positions),
                            .table = data_of<Acc<T>>(table),
                            .heads = static_cast<int>(q.extent(1)),
                            .kv_heads = static_cast<int>(k.extent(1)),
                            .half = static_cast<int>(q.extent(2) / 2)};
    const int units = (p.heads + 2 * p.kv_heads) * (p.half / N);
    launch_overlapped(context, rope_store_kernel<T, N>, static_cast<unsigned>(q.extent(0)),
                      static_cast<unsigned>(std::min(256, ceil_div(units, 32) * 32)), 0, p);
  });
}

void rope(const Context& context, Tensor x, Tensor table, Tensor positions, bool inverse,
          RopePairs pairs) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    const Acc<T>* cosines_sines = data_of<Acc<T>>(table);
    const std::int32_t* at = data_of<std::int32_t>(positions);
    if (pairs == RopePairs::Halves && rows_of<T>(x).aligned() && aligned16(cosines_sines) &&
        x.extent(2) / 2 % N == 0)
      launch<T, N>(context, x, cosines_sines, at, inverse, pairs);
    else
      launch<T, 1>(context, x, cosines_sines, at, inverse, pairs);
  });
}

void rope_backward(const Context& context, Tensor x, Tensor table, Tensor positions,
                   std::int64_t heads, Maxima maxima) {
  using T = Bf16;  // the type of fp8 runs
  constexpr int N = kVecSize<T>;
  const std::int64_t dim = table.extent(1), half = dim / 2;
  const bool strips = x.elements() > 0 && x.dtype() == DType::BF16 && rows_of<T>(x).aligned() &&
                      aligned16(table.data()) && half % N == 0 && x.extent(1) % dim == 0;
  if (!strips) {
    rope(context, x.part(1, 0, heads * dim).split_last(dim), table, positions, true,
         RopePairs::Halves);
    return find_maxima(context, maxima, x);
  }
  clear_maxima(context, maxima);
  const RopeBackward<T> p = {.x = Matrix<T>(x),
                             .maxima = maxima_bits(maxima),
                             .table = data_of<Acc<T>>(table),
                             .positions = data_of<std::int32_t>(positions),
                             .half = static_cast<int>(half),
                             .rotated = static_cast<int>(heads * dim),
                             .direction = -1.0f};
  const StripGrid grid(context, x.extent(0), x.extent(1) / (2 * N));
  const StripSize size{static_cast<int>(x.extent(0)), static_cast<int>(x.extent(1)), grid.rows};
  // It follows the memset of the maxima, which nothing overlaps.
  launch_kernel(context.stream, rope_backward_kernel<T, N>, grid.blocks, kStripThreads, 0, p, size);
}

}  // namespace kintsugi::gpu
