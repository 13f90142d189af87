// Attention of prompts on the tensor cores: a block computes 64 rows of a tile against blocks of 64
// keys, which begin at multiples of 64 and are copied to shared memory while the previous ones are
// in use. Results of a row do not depend on the other rows.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/paged_attention.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kRows = 64, kKeys = 64;
constexpr int kThreads = 128;  // each warp has 16 rows
constexpr float kLog2E = 1.4426950408889634f;

template <class T, int kDim>
struct PromptShared {
  static constexpr int kStride = kDim + 8;  // avoids bank conflicts of ldmatrix
  // Two, where they fit: queries, keys and values.
  static constexpr int kStages =
      kDim <= 128 && (kRows + 4 * kKeys) * kStride * sizeof(T) + 1024 <= kSharedBytes ? 2 : 1;
  T q[kRows][kStride];
  T k[kStages][kKeys][kStride], v[kStages][kKeys][kStride];
  int rows[2][kKeys];
};

// The rows of a block and the keys that they see.
struct Range {
  int rows;        // of the tile
  int row0;        // first of the block
  int begin, end;  // keys

  template <class T>
  __device__ Range(const Paged<T>& p, const PagedTile& tile, int row0)
      : rows(tile.tokens * p.group), row0(row0) {
    const int last = min(rows, row0 + kRows) - 1;
    begin = p.first_key(tile.position + row0 / p.group);
    end = tile.position + last / p.group + 1;
  }
};

template <class T, int kDim>
__device__ inline void look_up(PromptShared<T, kDim>& shared, int slot, const Paged<T>& p,
                               const PagedTile& tile, const Range& range, int key0) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kKeys) return;
  const int key = key0 + i;
  shared.rows[slot][i] = key >= range.begin && key < range.end ? p.key_row(tile, key) : -1;
}

template <class T, int kDim>
__device__ inline void copy_keys(PromptShared<T, kDim>& shared, int stage, int slot,
                                 const Paged<T>& p, int kv_head) {
  constexpr int kPacks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kPacks; i += kThreads) {
    const int key = i / kPacks, d = i % kPacks * 8, row = shared.rows[slot][key];
    const std::int64_t from = row >= 0 ? p.key_offset(row, kv_head) + d : 0;
    copy_async(&shared.k[stage][key][d], p.keys + from, row >= 0);
    copy_async(&shared.v[stage][key][d], p.values + from, row >= 0);
  }
}

template <class T, int kDim>
__device__ inline void copy_queries(PromptShared<T, kDim>& shared, const Paged<T>& p,
                                    const PagedTile& tile, const Range& range, int kv_head) {
  constexpr int kPacks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPacks; i += kThreads) {
    const int row = i / kPacks, d = i % kPacks * 8;
    const bool present = range.row0 + row < range.rows;
    copy_async(&shared.q[row][d], present ? p.query(tile, kv_head, range.row0 + row) + d : p.q,
               present);
  }
}

// A warp's 16 rows: lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 (h = 0, 1), and columns
// 2t and 2t + 1 of every 8.
template <class T, int kDim>
struct PromptRows {
  float out[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  int begin[2], end[2];  // the keys that a row sees
  float slope[2], scale;

  __device__ PromptRows(const Paged<T>& p, const PagedTile& tile, const Range& range, int kv_head,
                        int row)
      : scale(p.scale * kLog2E) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = range.row0 + row + 8 * h, position = tile.position + at / p.group;
      const bool present = at < range.rows;
      begin[h] = present ? p.first_key(position) : 0;
      end[h] = present ? position + 1 : 0;
      slope[h] = p.slope(kv_head, at) * kLog2E;
    }
  }

  __device__ void exponentials(float (&s)[kKeys / 8][4], int key) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float now = largest[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = key + 8 * n + i;
          float& x = s[n][2 * h + i];
          x = at >= begin[h] && at < end[h] ? x * scale + slope[h] * static_cast<float>(at)
                                            : -INFINITY;
          now = fmaxf(now, x);
        }
      now = fmaxf(now, shuffle_xor(now, 1));
      now = fmaxf(now, shuffle_xor(now, 2));
      const float base = now == -INFINITY ? 0.0f : now;
      const float shrink = exp2f(largest[h] - base);
      largest[h] = now;
      sum[h] *= shrink;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) sum[h] += s[n][2 * h + i] = exp2f(s[n][2 * h + i] - base);
#pragma unroll
      for (auto& tile : out) {
        tile[2 * h] *= shrink;
        tile[2 * h + 1] *= shrink;
      }
    }
  }

  __device__ void store(const Paged<T>& p, const PagedTile& tile, const Range& range, int kv_head,
                        int row, int t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += shuffle_xor(sum[h], 1);
      sum[h] += shuffle_xor(sum[h], 2);
      if (range.row0 + row + 8 * h >= range.rows) continue;
      const float inverse = 1.0f / sum[h];
      T* to = p.result(tile, kv_head, range.row0 + row + 8 * h) + 2 * t;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        *reinterpret_cast<unsigned*>(to + 8 * n) =
            pack_pair<T>(out[n][2 * h] * inverse, out[n][2 * h + 1] * inverse);
    }
  }
};

template <class T, int kDim>
__device__ inline void add_keys(PromptRows<T, kDim>& rows, const PromptShared<T, kDim>& shared,
                                int stage, int key0, int warp, int lane) {
  const int in_matrix = lane % 8, matrix = lane / 8;
  float s[kKeys / 8][4] = {};
#pragma unroll
  for (int d = 0; d < kDim; d += 16) {
    unsigned q[4];
    load_matrices(q, &shared.q[warp * 16 + matrix % 2 * 8 + in_matrix][d + matrix / 2 * 8]);
#pragma unroll
    for (int n = 0; n < kKeys; n += 16) {
      unsigned k[4];
      load_matrices(k, &shared.k[stage][n + matrix / 2 * 8 + in_matrix][d + matrix % 2 * 8]);
      multiply_add<T>(s[n / 8], q[0], q[1], q[2], q[3], k[0], k[1]);
      multiply_add<T>(s[n / 8 + 1], q[0], q[1], q[2], q[3], k[2], k[3]);
    }
  }
  rows.exponentials(s, key0 + 2 * (lane % 4));
#pragma unroll
  for (int n = 0; n < kKeys; n += 16) {
    const unsigned p0 = pack_pair<T>(s[n / 8][0], s[n / 8][1]),
                   p1 = pack_pair<T>(s[n / 8][2], s[n / 8][3]),
                   p2 = pack_pair<T>(s[n / 8 + 1][0], s[n / 8 + 1][1]),
                   p3 = pack_pair<T>(s[n / 8 + 1][2], s[n / 8 + 1][3]);
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      unsigned v[4];
      load_transposed(v, &shared.v[stage][n + matrix % 2 * 8 + in_matrix][d + matrix / 2 * 8]);
      multiply_add<T>(rows.out[d / 8], p0, p1, p2, p3, v[0], v[1]);
      multiply_add<T>(rows.out[d / 8 + 1], p0, p1, p2, p3, v[2], v[3]);
    }
  }
}

// Blocks (tile, key-value head, range of 64 rows).
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) prompt_kernel(Paged<T> p) {
  using Shared = PromptShared<T, kDim>;
  unsigned char* const memory = dynamic_shared();
  auto& shared = *reinterpret_cast<Shared*>(memory);
  allow_next();
  wait_for_previous();
  const PagedTile tile = p.tile(static_cast<int>(blockIdx.x));
  const int kv_head = static_cast<int>(blockIdx.y);
  const Range range(p, tile, static_cast<int>(blockIdx.z) * kRows);
  if (range.row0 >= range.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  PromptRows<T, kDim> rows(p, tile, range, kv_head, warp * 16 + lane / 4);

  const int key_begin = range.begin / kKeys * kKeys;
  const int steps = (range.end - key_begin + kKeys - 1) / kKeys;
  look_up(shared, 0, p, tile, range, key_begin);
  look_up(shared, 1, p, tile, range, key_begin + kKeys);
  __syncthreads();
  copy_queries(shared, p, tile, range, kv_head);
  copy_keys(shared, 0, 0, p, kv_head);
  commit_copies();
  for (int step = 0; step < steps; ++step) {
    const int stage = step % Shared::kStages;
    if constexpr (Shared::kStages == 2) {
      if (step + 1 < steps) copy_keys(shared, 1 - stage, (step + 1) % 2, p, kv_head);
      commit_copies();
      wait_for_copies<1>();
    } else {
      if (step > 0) copy_keys(shared, 0, step % 2, p, kv_head);
      commit_copies();
      wait_for_copies<0>();
    }
    __syncthreads();
    // All copies of this step's keys are done, so that its rows are free.
    look_up(shared, step % 2, p, tile, range, key_begin + (step + 2) * kKeys);
    add_keys(rows, shared, stage, key_begin + step * kKeys, warp, lane);
    __syncthreads();
  }
  rows.store(p, tile, range, kv_head, warp * 16 + lane / 4, lane % 4);
}

}  // namespace

bool paged_prompt_tensor_cores(const Context& context, const Tensor& out, const Tensor& q,
                               const Tensor& keys, const Tensor& values,
                               const PagedAttentionOptions& options) {
  if (!paged_rows_suit(out, q, keys, values)) return false;
  return visit_paged_tensor_cores(q, [&]<class T, int kDim>() {
    if (sizeof(PromptShared<T, kDim>) > kSharedBytes) return false;
    const Paged<T> p = paged_of<T>(out, q, keys, values, options);
    const dim3 blocks(
        static_cast<unsigned>(options.tiles.extent(0)), static_cast<unsigned>(p.kv_heads),
        static_cast<unsigned>(ceil_div<std::int64_t>(options.tile_tokens * p.group, kRows)));
    constexpr std::size_t kBytes = sizeof(PromptShared<T, kDim>);
    allow_shared_bytes(reinterpret_cast<const void*>(prompt_kernel<T, kDim>), kBytes);
    launch_overlapped(context, prompt_kernel<T, kDim>, blocks, kThreads, kBytes, p);
    return true;
  });
}

}  // namespace kintsugi::gpu
