// Attention of decoding, one query token per tile, on the tensor cores. The keys of a query are
// split at multiples of 256 and the splits are computed by different blocks, so that a single
// sequence fills the GPU. All heads of a group share the keys that a block loads. Nothing depends
// on the other queries of a call.
//
// The fragments of the tensor cores are loaded straight from memory, 16 bytes per lane. That
// permutes the elements of a head, in the same way for both operands of the scores; in the values
// it assigns whole ranges of columns to a lane.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/paged_attention.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kSplitKeys = 256;
constexpr int kHeads = 8;      // query heads of a block
constexpr int kTileKeys = 16;  // of one step of a warp
constexpr float kLog2E = 1.4426950408889634f;

template <int kDim>
struct Layout {
  static constexpr int kWarps = kDim <= 128 ? 8 : 4;
  static constexpr int kWarpKeys = kSplitKeys / kWarps;
  // Keys and queries: a lane has kPer consecutive elements of each of kChunks ranges.
  static constexpr int kPer = kDim % 32 == 0 ? 8 : 4;
  static constexpr int kChunks = kDim / (4 * kPer);
  // Values: the same with 8 lanes per row.
  static constexpr int kValuePer = kDim % 64 == 0 ? 8 : kDim / 8;
  static constexpr int kValueChunks = kDim / (8 * kValuePer);
};

// 2 * kWords elements of 16 bits
template <int kWords, class T>
__device__ inline void load_words(unsigned (&words)[kWords], const T* address) {
  constexpr int kStep = kWords % 4 == 0 ? 4 : kWords % 2 == 0 ? 2 : 1;
  using W = detail::Word<4 * kStep>;
  W loaded[kWords / kStep];
#pragma unroll
  for (int i = 0; i < kWords / kStep; ++i) loaded[i] = reinterpret_cast<const W*>(address)[i];
  memcpy(words, loaded, sizeof(words));
}

// The rows of a warp's heads 8 to 15 do not exist: their results stay 0.
template <class T>
__device__ inline void multiply_add(float (&d)[2], unsigned a0, unsigned a2, unsigned b0,
                                    unsigned b1) {
  float full[4] = {d[0], d[1], 0.0f, 0.0f};
  gpu::multiply_add<T>(full, a0, 0u, a2, 0u, b0, b1);
  d[0] = full[0];
  d[1] = full[1];
}

// What a warp has computed of kHeads query heads: lane (g, t) = (lane / 4, lane % 4) has the
// columns 2t and 2t + 1 of head g of each result of the tensor cores.
template <class T, int kDim>
struct WarpResult {
  using L = Layout<kDim>;
  float out[L::kValueChunks][L::kValuePer][2] = {};
  float largest = -INFINITY, sum = 0.0f;

  // One step: scores of 16 keys, then their values.
  __device__ void add(const Paged<T>& p, const unsigned (&q)[L::kChunks][L::kPer / 2],
                      const int* rows, int key0, int begin, int end, int kv_head, float scale,
                      float slope) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    unsigned k[2][L::kChunks][L::kPer / 2], v[4][L::kValueChunks][L::kValuePer / 2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int row = rows[8 * n + g];
#pragma unroll
      for (int c = 0; c < L::kChunks; ++c) {
        memset(k[n][c], 0, sizeof(k[n][c]));
        if (row >= 0)
          load_words(k[n][c], p.keys + p.key_offset(row, kv_head) + (c * 4 + t) * L::kPer);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = rows[(i / 2) * 8 + 2 * t + i % 2];
#pragma unroll
      for (int c = 0; c < L::kValueChunks; ++c) {
        memset(v[i][c], 0, sizeof(v[i][c]));
        if (row >= 0)
          load_words(v[i][c], p.values + p.key_offset(row, kv_head) + (c * 8 + g) * L::kValuePer);
      }
    }
    float s[2][2] = {};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < L::kChunks; ++c)
#pragma unroll
        for (int w = 0; w < L::kPer / 2; w += 2)
          multiply_add<T>(s[n], q[c][w], q[c][w + 1], k[n][c][w], k[n][c][w + 1]);
    exponentials(s, key0 + 2 * t, begin, end, scale, slope);
    const unsigned a0 = pack_pair<T>(s[0][0], s[0][1]), a2 = pack_pair<T>(s[1][0], s[1][1]);
#pragma unroll
    for (int c = 0; c < L::kValueChunks; ++c)
#pragma unroll
      for (int j = 0; j < L::kValuePer; ++j) {
        const unsigned halves = j % 2 == 0 ? 0x5410u : 0x7632u;
        multiply_add<T>(out[c][j], a0, a2, __byte_perm(v[0][c][j / 2], v[1][c][j / 2], halves),
                        __byte_perm(v[2][c][j / 2], v[3][c][j / 2], halves));
      }
  }

  // Scores to exponentials: this lane's keys are `key` and the next, and 8 after them.
  __device__ void exponentials(float (&s)[2][2], int key, int begin, int end, float scale,
                               float slope) {
    float now = largest;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = key + 8 * n + i;
        s[n][i] = at >= begin && at < end ? (s[n][i] * scale + slope * static_cast<float>(at))
                                          : -INFINITY;
        now = fmaxf(now, s[n][i]);
      }
    now = fmaxf(now, shuffle_xor(now, 1));
    now = fmaxf(now, shuffle_xor(now, 2));
    const float base = now == -INFINITY ? 0.0f : now;
    const float shrink = exp2f(largest - base);
    largest = now;
    sum *= shrink;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) sum += s[n][i] = exp2f(s[n][i] - base);
#pragma unroll
    for (auto& chunk : out)
#pragma unroll
      for (auto& pair : chunk) {
        pair[0] *= shrink;
        pair[1] *= shrink;
      }
  }
};

// The results of the warps, as their lanes have them: no bank conflicts.
template <int kDim>
struct DecodeShared {
  static constexpr int kWarps = Layout<kDim>::kWarps;
  int rows[kSplitKeys];
  float largest[kWarps][kHeads], sum[kWarps][kHeads];
  float out[kWarps][kDim / 8 * 2][32];
};

template <class T, int kDim>
__device__ inline void store_warp(DecodeShared<kDim>& shared, WarpResult<T, kDim>& mine) {
  using L = Layout<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  mine.sum += shuffle_xor(mine.sum, 1);
  mine.sum += shuffle_xor(mine.sum, 2);
  if (lane % 4 == 0) {
    shared.largest[warp][lane / 4] = mine.largest;
    shared.sum[warp][lane / 4] = mine.sum;
  }
#pragma unroll
  for (int c = 0; c < L::kValueChunks; ++c)
#pragma unroll
    for (int j = 0; j < L::kValuePer; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        shared.out[warp][(c * L::kValuePer + j) * 2 + i][lane] = mine.out[c][j][i];
}

// Adds the warps in order. A split with all keys of the query writes the result itself.
template <class T, int kDim>
__device__ inline void merge_warps(const Paged<T>& p, const PagedParts<float>& parts,
                                   const DecodeShared<kDim>& shared, const PagedTile& tile,
                                   int kv_head, int head0, int heads, bool complete) {
  using L = Layout<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % 32, head = lane / 4, t = lane % 4;
  if (head >= heads) return;
  float largest = -INFINITY, sum = 0.0f, weight[L::kWarps];
#pragma unroll
  for (int w = 0; w < L::kWarps; ++w) largest = fmaxf(largest, shared.largest[w][head]);
  const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
  for (int w = 0; w < L::kWarps; ++w) {
    weight[w] = exp2f(shared.largest[w][head] - base);
    sum += weight[w] * shared.sum[w][head];
  }
  const std::int64_t part =
      parts.index(p, static_cast<int>(blockIdx.x), kv_head * p.group + head0 + head,
                  static_cast<int>(blockIdx.z));
  for (int e = static_cast<int>(threadIdx.x) / 32; e < kDim / 4; e += L::kWarps) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < L::kWarps; ++w) total += weight[w] * shared.out[w][e][lane];
    const int column = e / 2, j = column % L::kValuePer, c = column / L::kValuePer;
    const int d = (c * 8 + 2 * t + e % 2) * L::kValuePer + j;
    if (complete)
      p.result(tile, kv_head, head0 + head)[d] = down<T>(total / sum);
    else
      parts.out[part * kDim + d] = total;
  }
  if (!complete && threadIdx.x < 32 && t == 0) {
    parts.largest[part] = largest;
    parts.sum[part] = sum;
  }
}

// Blocks (tile, key-value head and range of its query heads, split).
template <class T, int kDim>
__global__ void __launch_bounds__(32 * Layout<kDim>::kWarps)
    decode_kernel(Paged<T> p, PagedParts<float> parts) {
  using L = Layout<kDim>;
  KINTSUGI_SHARED(DecodeShared<kDim>, shared);
  allow_next();
  wait_for_previous();
  const PagedTile tile = p.tile(static_cast<int>(blockIdx.x));
  const int first = static_cast<int>(blockIdx.z) * kSplitKeys;
  const int begin = max(first, p.first_key(tile.position)),
            end = min(first + kSplitKeys, tile.position + 1);
  if (tile.tokens == 0 || begin >= end) return;
  const int ranges = (p.group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / ranges,
            head0 = static_cast<int>(blockIdx.y) % ranges * kHeads;
  const int heads = min(kHeads, p.group - head0);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int i = warp * L::kWarpKeys + lane; i < (warp + 1) * L::kWarpKeys; i += 32)
    shared.rows[i] = first + i >= begin && first + i < end ? p.key_row(tile, first + i) : -1;
  const int g = lane / 4, t = lane % 4;
  unsigned q[L::kChunks][L::kPer / 2];
#pragma unroll
  for (int c = 0; c < L::kChunks; ++c) {
    memset(q[c], 0, sizeof(q[c]));
    if (g < heads) load_words(q[c], p.query(tile, kv_head, head0 + g) + (c * 4 + t) * L::kPer);
  }
  const float slope = g < heads ? p.slope(kv_head, head0 + g) * kLog2E : 0.0f;
  sync_team();

  WarpResult<T, kDim> mine;
#pragma unroll 2
  for (int i = warp * L::kWarpKeys; i < (warp + 1) * L::kWarpKeys; i += kTileKeys)
    if (first + i < end && first + i + kTileKeys > begin)
      mine.add(p, q, shared.rows + i, first + i, begin, end, kv_head, p.scale * kLog2E, slope);
  store_warp(shared, mine);
  __syncthreads();
  const bool complete = parts.first_split(p, tile) == parts.last_split(tile);
  merge_warps(p, parts, shared, tile, kv_head, head0, heads, complete);
}

// Blocks (tile, head).
template <class T>
__global__ void __launch_bounds__(kPagedMaxDim)
    merge_kernel(Paged<T> p, PagedParts<Acc<T>> parts, bool base2) {
  using A = Acc<T>;
  allow_next();
  wait_for_previous();
  const PagedTile tile = p.tile(static_cast<int>(blockIdx.x));
  const int first = parts.first_split(p, tile), last = parts.last_split(tile);
  if (tile.tokens == 0 || first == last) return;
  const int head = static_cast<int>(blockIdx.y), d = static_cast<int>(threadIdx.x);
  if (d >= p.value_dim) return;
  const auto power = [=](A x) {
    if constexpr (std::is_same_v<A, float>) {
      return base2 ? exp2f(x) : expf(x);
    } else {
      return exp(x);
    }
  };
  const std::int64_t part = parts.index(p, static_cast<int>(blockIdx.x), head, 0);
  constexpr int kAhead = 4;  // splits whose loads are in flight
  A largest = -INFINITY, sum = 0, total = 0;
  for (int s = first; s <= last; s += kAhead) {
    A most[kAhead], parts_sum[kAhead], out[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool present = s + i <= last;
      const std::int64_t at = part + min(s + i, last);
      most[i] = present ? parts.largest[at] : A(-INFINITY);
      parts_sum[i] = present ? parts.sum[at] : A(0);
      out[i] = present ? parts.out[at * p.value_dim + d] : A(0);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const A now = max(largest, most[i]), base = now == A(-INFINITY) ? A(0) : now;
      const A before = power(largest - base), weight = power(most[i] - base);
      largest = now;
      sum = sum * before + parts_sum[i] * weight;
      total = total * before + out[i] * weight;
    }
  }
  p.result(tile, head / p.group, head % p.group)[d] = down<T>(total / sum);
}

}  // namespace

template <class T>
void merge_paged_parts(const Context& context, const Paged<T>& p, const PagedParts<Acc<T>>& parts,
                       std::int64_t tiles, bool base2) {
  if (parts.splits == 1) return;
  launch_overlapped(context, merge_kernel<T>,
                    dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(p.kv_heads * p.group)),
                    static_cast<unsigned>(ceil_div(p.value_dim, 32) * 32), 0, p, parts, base2);
}
template void merge_paged_parts(const Context&, const Paged<float>&, const PagedParts<float>&,
                                std::int64_t, bool);
template void merge_paged_parts(const Context&, const Paged<double>&, const PagedParts<double>&,
                                std::int64_t, bool);
template void merge_paged_parts(const Context&, const Paged<Half>&, const PagedParts<float>&,
                                std::int64_t, bool);
template void merge_paged_parts(const Context&, const Paged<Bf16>&, const PagedParts<float>&,
                                std::int64_t, bool);

bool paged_decode_tensor_cores(const Context& context, const Tensor& out, const Tensor& q,
                               const Tensor& keys, const Tensor& values,
                               const PagedAttentionOptions& options) {
  if (!paged_rows_suit(out, q, keys, values)) return false;
  return visit_paged_tensor_cores(q, [&]<class T, int kDim>() {
    const Paged<T> p = paged_of<T>(out, q, keys, values, options);
    const PagedParts<float> parts = paged_parts<float>(context, out, options, kSplitKeys);
    const dim3 blocks(static_cast<unsigned>(options.tiles.extent(0)),
                      static_cast<unsigned>(p.kv_heads * ceil_div(p.group, kHeads)),
                      static_cast<unsigned>(parts.splits));
    launch_overlapped(context, decode_kernel<T, kDim>, blocks, 32 * Layout<kDim>::kWarps, 0, p,
                      parts);
    merge_paged_parts(context, p, parts, options.tiles.extent(0), true);
    return true;
  });
}

}  // namespace kintsugi::gpu
