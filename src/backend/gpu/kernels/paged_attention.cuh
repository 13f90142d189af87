#pragma once

#include <algorithm>
#include <cmath>

#include "backend/backend.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

// Common code of the kernels of paged attention.

namespace kintsugi::gpu {

inline constexpr int kPagedMaxDim = 576;  // of keys and values

// One tile of queries: `tokens` of a sequence from row `first` of q and `position` on.
struct PagedTile {
  int first, tokens, sequence, position;
};

// The operands of a call. A row of a tile is one query head: row r is token r / group of the tile
// and head r % group of the key-value head.
template <class T>
struct Paged {
  T* out;
  const T *q, *keys, *values;
  std::int64_t out_token, out_head, q_token, q_head;  // strides
  const std::int32_t *pages, *tiles;
  std::int64_t page_stride;            // of a sequence
  const float* slopes;                 // nullptr: no ALiBi
  std::int64_t value_row, value_head;  // strides
  int page_tokens, kv_heads, group, window;
  int dim, value_dim;  // of queries and keys, of values and outputs
  Acc<T> scale;

  __device__ PagedTile tile(int index) const {
    const std::int32_t* t = tiles + static_cast<std::int64_t>(index) * 4;
    return {t[0], t[1], t[2], t[3]};
  }
  __device__ int first_key(int position) const {
    return window > 0 ? max(0, position + 1 - window) : 0;
  }
  // The row of a key in `keys`, counted in tokens.
  __device__ int key_row(const PagedTile& tile, int key) const {
    const int page = key / page_tokens;
    return pages[tile.sequence * page_stride + page] * page_tokens + (key - page * page_tokens);
  }
  __device__ std::int64_t key_offset(int row, int kv_head) const {
    return (static_cast<std::int64_t>(row) * kv_heads + kv_head) * dim;
  }
  __device__ const T* value(int row, int kv_head) const {
    return values + row * value_row + kv_head * value_head;
  }
  __device__ const T* query(const PagedTile& tile, int kv_head, int row) const {
    return q + (tile.first + row / group) * q_token + (kv_head * group + row % group) * q_head;
  }
  __device__ T* result(const PagedTile& tile, int kv_head, int row) const {
    return out + (tile.first + row / group) * out_token +
           (kv_head * group + row % group) * out_head;
  }
  __device__ float slope(int kv_head, int row) const {
    return slopes == nullptr ? 0.0f : slopes[kv_head * group + row % group];
  }
};

template <class T>
Paged<T> paged_of(const Tensor& out, const Tensor& q, const Tensor& keys, const Tensor& values,
                  const PagedAttentionOptions& options) {
  return {.out = data_of<T>(out),
          .q = data_of<T>(q),
          .keys = data_of<T>(keys),
          .values = data_of<T>(values),
          .out_token = out.stride(0),
          .out_head = out.stride(1),
          .q_token = q.stride(0),
          .q_head = q.stride(1),
          .pages = data_of<std::int32_t>(options.pages),
          .tiles = data_of<std::int32_t>(options.tiles),
          .page_stride = options.pages.stride(0),
          .slopes = data_of<float>(options.alibi_slopes),
          .value_row = values.stride(1),
          .value_head = values.stride(2),
          .page_tokens = static_cast<int>(keys.extent(1)),
          .kv_heads = static_cast<int>(keys.extent(2)),
          .group = static_cast<int>(q.extent(1) / keys.extent(2)),
          .window = static_cast<int>(std::min<std::int64_t>(options.window, 1 << 30)),
          .dim = static_cast<int>(q.extent(2)),
          .value_dim = static_cast<int>(out.extent(2)),
          .scale = static_cast<Acc<T>>(options.scale)};
}

// The results of the splits of a decoding query: (tiles, heads, splits, value_dim), and the largest
// score and the sum of exponentials of each. The results are not divided by the sums.
template <class A>
struct PagedParts {
  A *out, *largest, *sum;
  int splits, split_keys;

  // The splits that have keys of this query.
  template <class T>
  __device__ int first_split(const Paged<T>& p, const PagedTile& tile) const {
    return p.first_key(tile.position) / split_keys;
  }
  __device__ int last_split(const PagedTile& tile) const { return tile.position / split_keys; }
  template <class T>
  __device__ std::int64_t index(const Paged<T>& p, int tile, int head, int split) const {
    return (static_cast<std::int64_t>(tile) * p.kv_heads * p.group + head) * splits + split;
  }
};

template <class A>
PagedParts<A> paged_parts(const Context& context, const Tensor& out,
                          const PagedAttentionOptions& options, int split_keys) {
  const auto splits = static_cast<int>(
      std::max<std::int64_t>(1, ceil_div<std::int64_t>(options.max_keys, split_keys)));
  if (splits == 1) return {nullptr, nullptr, nullptr, 1, split_keys};
  const std::size_t parts =
      static_cast<std::size_t>(options.tiles.extent(0) * out.extent(1)) * splits;
  const auto dim = static_cast<std::size_t>(out.extent(2));
  A* memory = context.workspace.get<A>(parts * (dim + 2), context.stream);
  return {memory, memory + parts * dim, memory + parts * (dim + 1), splits, split_keys};
}

// Tensor cores: 16-bit types, keys and values of 32, 64, 80, 96, 128 or 256, 16-byte rows.
bool paged_decode_tensor_cores(const Context& context, const Tensor& out, const Tensor& q,
                               const Tensor& keys, const Tensor& values,
                               const PagedAttentionOptions& options);
bool paged_prompt_tensor_cores(const Context& context, const Tensor& out, const Tensor& q,
                               const Tensor& keys, const Tensor& values,
                               const PagedAttentionOptions& options);
// Adds the splits of every query in order. `base2`: scores are in powers of 2.
template <class T>
void merge_paged_parts(const Context& context, const Paged<T>& p, const PagedParts<Acc<T>>& parts,
                       std::int64_t tiles, bool base2);

// ---- tensor cores
// Returns f.template operator()<T, kDim>() for the types and head sizes of the tensor-core kernels,
// false for others.
template <class F>
bool visit_paged_tensor_cores(const Tensor& q, F&& f) {
  const auto with_type = [&]<class T>() {
    switch (q.extent(2)) {
      case 32:
        return f.template operator()<T, 32>();
      case 64:
        return f.template operator()<T, 64>();
      case 80:
        return f.template operator()<T, 80>();
      case 96:
        return f.template operator()<T, 96>();
      case 128:
        return f.template operator()<T, 128>();
      case 256:
        return f.template operator()<T, 256>();
      default:
        return false;
    }
  };
  if constexpr (kMatrixUnit == MatrixUnit::Mma) {
    if (q.dtype() == DType::BF16) return with_type.template operator()<Bf16>();
    if (q.dtype() == DType::F16) return with_type.template operator()<Half>();
  }
  return false;
}

// Rows of q start at multiples of 16 bytes, and so do those of the pages; values are like keys.
inline bool paged_rows_suit(const Tensor& out, const Tensor& q, const Tensor& keys,
                            const Tensor& values) {
  const auto strides =
      static_cast<std::size_t>(q.stride(0) | q.stride(1) | out.stride(0) | out.stride(1)) *
      size_of(q.dtype());
  return values.shape() == keys.shape() && strides % 16 == 0 && aligned16(q.data()) &&
         aligned16(out.data()) && aligned16(keys.data()) && aligned16(values.data());
}

}  // namespace kintsugi::gpu
