#pragma once

#include <algorithm>
#include <type_traits>

#include "backend/attention_mask.h"
#include "backend/gpu/common.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

// Common code of our own attention kernels: their operands, and the keys that a query sees.

namespace kintsugi::gpu {

// A (batch, positions, heads, dim) tensor.
template <class T>
struct Heads {
  T* data;
  std::int64_t batch, position, head;  // strides

  __device__ T* row(int b, int p, int h) const {
    return data + b * batch + p * position + h * head;
  }
  // Every row starts at a multiple of 16 bytes.
  bool aligned() const {
    return aligned16(data) && (batch | position | head) * sizeof(T) % 16 == 0;
  }
};

// A (batch, heads, queries) tensor.
template <class A>
struct Rows {
  A* data;
  std::int64_t batch, head;  // strides

  __device__ A* of(int b, int h) const { return data + b * batch + h * head; }
};

struct Sizes {
  int heads, kv_heads, queries, keys;
  int dim, value_dim;  // of queries and keys, of values and outputs
  AttentionMask mask;
  double scale;
  const float* slopes;         // (heads) or nullptr
  const std::int32_t* starts;  // (batch, queries) or nullptr
  std::int64_t start_stride;
};

// Keys [begin, end).
struct KeyRange {
  int begin, end;
  __device__ bool has(int key) const { return key >= begin && key < end; }
};

// The keys that a range of queries sees.
struct KeySpan {
  KeyRange any;  // contains every key that any of the queries sees
  KeyRange all;  // every query sees these

  __device__ bool sees(int first, int last) const { return any.begin < last && first < any.end; }
  __device__ bool sees_all(int first, int last) const {
    return all.begin <= first && last <= all.end;
  }
};

// The keys that the queries of a sequence see.
struct Visible {
  __device__ Visible(const Sizes& sizes, int b)
      : mask(sizes.mask), starts(sizes.starts ? sizes.starts + b * sizes.start_stride : nullptr) {}

  // The keys that a query sees; none for a row of a tile beyond the last query.
  __device__ KeyRange keys(int query) const {
    if (query >= mask.queries) return {0, 0};
    const int begin = static_cast<int>(mask.begin(query));
    return {starts ? max(begin, starts[query]) : begin, static_cast<int>(mask.end(query))};
  }
  // The keys of the queries [first, first + count). All threads of a team call it together.
  __device__ KeySpan span(int first, int count) const {
    const int last = min(static_cast<int>(mask.queries), first + count) - 1;
    if (first > last) return {{0, 0}, {0, 0}};
    KeySpan span{{static_cast<int>(mask.begin(first)), static_cast<int>(mask.end(last))},
                 {static_cast<int>(mask.begin(last)), static_cast<int>(mask.end(first))}};
    if (last - first + 1 < count) span.all.end = 0;  // rows beyond the last query see nothing
    if (starts == nullptr) return span;
    unsigned least = ~0u, greatest = 0;
    for (int query = first + static_cast<int>(threadIdx.x % kTeam); query <= last; query += kTeam) {
      least = min(least, static_cast<unsigned>(starts[query]));
      greatest = max(greatest, static_cast<unsigned>(starts[query]));
    }
    span.any.begin = max(span.any.begin, static_cast<int>(~team_max(~least)));
    span.all.begin = max(span.all.begin, static_cast<int>(team_max(greatest)));
    return span;
  }

  const AttentionMask& mask;
  const std::int32_t* starts;
};

// ---- launchers

template <class T>
Heads<T> heads_of(const Tensor& x) {
  return {data_of<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), x.stride(2)};
}

template <class A>
Rows<A> rows_of_heads(const Tensor& x) {
  return {data_of<std::remove_const_t<A>>(x), x.stride(0), x.stride(1)};
}

// The larger of the sizes of a key and a value.
inline std::int64_t largest_head(const Tensor& q, const Tensor& v) {
  return std::max(q.extent(3), v.extent(3));
}
Sizes attention_sizes(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options);

inline dim3 attention_blocks(std::int64_t positions, int tile, std::int64_t heads,
                             std::int64_t batch) {
  return dim3(static_cast<unsigned>(ceil_div<std::int64_t>(positions, tile)),
              static_cast<unsigned>(heads), static_cast<unsigned>(batch));
}

template <class... Parameters, class... Arguments>
void launch_attention(void (*kernel)(Parameters...), dim3 blocks, int threads,
                      std::size_t shared_bytes, Stream stream, Arguments... arguments) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes);
  launch_kernel(stream, kernel, blocks, static_cast<unsigned>(threads), shared_bytes, arguments...);
}

// Attention on the matrix units: 16-bit types, heads of a multiple of 8 elements up to 256, rows at
// multiples of 16 bytes. Return false, without any effect, for other operands. row_sum has space
// for a float per query and head.
bool matrix_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q,
                              const Tensor& k, const Tensor& v, const AttentionOptions& options,
                              Stream stream);
bool matrix_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                               const Tensor& dout, const Tensor& out, const Tensor& lse,
                               const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionOptions& options, float* row_sum, Stream stream);

}  // namespace kintsugi::gpu
