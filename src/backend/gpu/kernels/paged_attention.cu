// Attention to keys and values in pages. Tensor-core kernels compute 16-bit types (paged_decode.cu,
// paged_prompt.cu); the kernel of this file computes all others.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/paged_attention.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kWarpRows = 4;  // rows of a tile that a warp computes at once
constexpr int kBlockRows = kWarps * kWarpRows;
constexpr int kSplitKeys = 64;  // of decoding: few keys, so that one sequence uses many warps

// Scores of 32 keys: each lane has one key. With N elements per access.
template <int N, int kDim, class T>
__device__ inline void add_scores(Acc<T> (&s)[kWarpRows], const Acc<T> (*q)[kDim], const T* key,
                                  int dim) {
  for (int d = 0; d < dim; d += N) {
    const Pack<T, N> pack = load<N>(key + d);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) s[r] += q[r][d + n] * up(pack.v[n]);
  }
}

// A warp's rows of a tile; each lane has the elements lane, lane + 32, … of the results.
template <class T, int kSlots>
struct PlainRows {
  using A = Acc<T>;
  A out[kWarpRows][kSlots] = {};
  A largest[kWarpRows], sum[kWarpRows];
  int begin[kWarpRows], end[kWarpRows];  // the keys that a row sees
  A slope[kWarpRows];

  __device__ PlainRows(const Paged<T>& p, const PagedTile& tile, int kv_head, int row0, int rows) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const int position = tile.position + (row0 + r) / p.group;
      const bool present = row0 + r < rows;
      begin[r] = present ? p.first_key(position) : 0;
      end[r] = present ? position + 1 : 0;
      slope[r] = present ? static_cast<A>(p.slope(kv_head, row0 + r)) : A(0);
      largest[r] = -INFINITY;
      sum[r] = 0;
    }
  }

  // s: scores of the keys key0 + lane; key_row: the row of that key, -1 if no row sees it.
  __device__ void add(const Paged<T>& p, A (&s)[kWarpRows], int kv_head, int key0, int key_row) {
    const int lane = static_cast<int>(threadIdx.x) % 32, key = key0 + lane;
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      s[r] = key_row >= 0 && key >= begin[r] && key < end[r] ? s[r] + slope[r] * static_cast<A>(key)
                                                             : A(-INFINITY);
      const A now = max(largest[r], warp_max(s[r]));
      const A base = now == A(-INFINITY) ? A(0) : now;
      const A shrink = exp_of<A>(largest[r] - base);
      largest[r] = now;
      s[r] = exp_of<A>(s[r] - base);
      sum[r] = sum[r] * shrink + warp_sum(s[r]);
#pragma unroll
      for (int i = 0; i < kSlots; ++i) out[r][i] *= shrink;
    }
    for (int j = 0; j < 32; ++j) {
      const int row = shuffle(key_row, j);
      if (row < 0) continue;
      A weight[kWarpRows];
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) weight[r] = shuffle(s[r], j);
      const T* value = p.value(row, kv_head);
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        if (lane + 32 * i >= p.value_dim) continue;
        const A v = up(value[lane + 32 * i]);
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) out[r][i] += weight[r] * v;
      }
    }
  }

  __device__ void store(const Paged<T>& p, const PagedParts<A>& parts, const PagedTile& tile,
                        int kv_head, int row0, int rows, int split, bool complete) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      if (row0 + r >= rows) continue;
      if (complete) {
        T* to = p.result(tile, kv_head, row0 + r);
#pragma unroll
        for (int i = 0; i < kSlots; ++i)
          if (lane + 32 * i < p.value_dim) to[lane + 32 * i] = down<T>(out[r][i] / sum[r]);
        continue;
      }
      const std::int64_t part =
          parts.index(p, static_cast<int>(blockIdx.x), kv_head * p.group + row0 + r, split);
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
        if (lane + 32 * i < p.value_dim) parts.out[part * p.value_dim + lane + 32 * i] = out[r][i];
      if (lane == 0) {
        parts.largest[part] = largest[r];
        parts.sum[part] = sum[r];
      }
    }
  }
};

template <class A, int kDim>
struct PlainQueries {
  A value[kWarps][kWarpRows][kDim];
};

// Blocks (tile, key-value head, split and range of rows). kSlots: elements of a head per lane.
template <class T, int kSlots, int N>
__global__ void __launch_bounds__(32 * kWarps)
    plain_kernel(Paged<T> p, PagedParts<Acc<T>> parts, int ranges) {
  using A = Acc<T>;
  constexpr int kDim = 32 * kSlots;
  auto& queries = *reinterpret_cast<PlainQueries<A, kDim>*>(dynamic_shared());
  allow_next();
  wait_for_previous();
  const PagedTile tile = p.tile(static_cast<int>(blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int kv_head = static_cast<int>(blockIdx.y), split = static_cast<int>(blockIdx.z) / ranges;
  const int rows = tile.tokens * p.group;
  const int row0 = static_cast<int>(blockIdx.z) % ranges * kBlockRows + warp * kWarpRows;
  if (row0 >= rows) return;
  A(*q)[kDim] = queries.value[warp];
  for (int r = 0; r < kWarpRows; ++r)
    for (int d = lane; d < p.dim; d += 32)
      q[r][d] = row0 + r < rows ? up(p.query(tile, kv_head, row0 + r)[d]) * p.scale : A(0);
  sync_team();

  PlainRows<T, kSlots> mine(p, tile, kv_head, row0, rows);
  const int last = min(rows, row0 + kWarpRows) - 1;
  int begin = p.first_key(tile.position + row0 / p.group), end = tile.position + last / p.group + 1;
  const bool complete = parts.splits == 1 || parts.first_split(p, tile) == parts.last_split(tile);
  if (parts.splits > 1) {
    begin = max(begin, split * parts.split_keys);
    end = min(end, (split + 1) * parts.split_keys);
    if (begin >= end) return;
  }
  for (int key0 = begin / 32 * 32; key0 < end; key0 += 32) {
    const int key = key0 + lane;
    const int row = key >= begin && key < end ? p.key_row(tile, key) : -1;
    A s[kWarpRows] = {};
    if (row >= 0) add_scores<N>(s, q, p.keys + p.key_offset(row, kv_head), p.dim);
    mine.add(p, s, kv_head, key0, row);
  }
  mine.store(p, parts, tile, kv_head, row0, rows, split, complete);
}

template <class T, int kSlots>
void launch_plain(const Context& context, const Paged<T>& p, const Tensor& out,
                  const PagedAttentionOptions& options, bool aligned) {
  using A = Acc<T>;
  constexpr std::size_t kBytes = sizeof(PlainQueries<A, 32 * kSlots>);
  const bool decoding = options.tile_tokens == 1;
  const PagedParts<A> parts = decoding ? paged_parts<A>(context, out, options, kSplitKeys)
                                       : PagedParts<A>{nullptr, nullptr, nullptr, 1, kSplitKeys};
  const int ranges =
      static_cast<int>(ceil_div<std::int64_t>(options.tile_tokens * p.group, kBlockRows));
  const dim3 blocks(static_cast<unsigned>(options.tiles.extent(0)),
                    static_cast<unsigned>(p.kv_heads),
                    static_cast<unsigned>(parts.splits * ranges));
  const auto kernel = aligned ? plain_kernel<T, kSlots, kVecSize<T>> : plain_kernel<T, kSlots, 1>;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  launch_overlapped(context, kernel, blocks, 32 * kWarps, kBytes, p, parts, ranges);
  merge_paged_parts(context, p, parts, options.tiles.extent(0), false);
}

}  // namespace

void paged_attention(const Context& context, Tensor out, Tensor q, Tensor keys, Tensor values,
                     const PagedAttentionOptions& options) {
  const std::int64_t largest = std::max(keys.extent(3), values.extent(3));
  KINTSUGI_CHECK(
      largest <= kPagedMaxDim && keys.extent(0) * keys.extent(1) < (std::int64_t{1} << 31),
      "paged attention to keys {}, values {}: heads have at most {} elements",
      to_string(keys.shape()), to_string(values.shape()), kPagedMaxDim);
  if (q.elements() == 0 || options.tiles.elements() == 0) return;
  if (options.tile_tokens == 1 && paged_decode_tensor_cores(context, out, q, keys, values, options))
    return;
  if (options.tile_tokens > 1 && paged_prompt_tensor_cores(context, out, q, keys, values, options))
    return;
  visit_device_float(q.dtype(), [&]<class T>() {
    const Paged<T> p = paged_of<T>(out, q, keys, values, options);
    const bool aligned = aligned16(p.keys) && p.dim % kVecSize<T> == 0;
    if (largest <= 64)
      launch_plain<T, 2>(context, p, out, options, aligned);
    else if (largest <= 128)
      launch_plain<T, 4>(context, p, out, options, aligned);
    else if (largest <= 256)
      launch_plain<T, 8>(context, p, out, options, aligned);
    else
      launch_plain<T, kPagedMaxDim / 32>(context, p, out, options, aligned);
  });
}

}  // namespace kintsugi::gpu
