// Tiled attention with an online softmax; the (queries, keys) matrix is never stored. 16-bit heads
// go to the matrix units where these compute them (attention_matrix_*.cu); the kernels here are for
// all others, in the arithmetic of their accumulators. A block of 16 x 16 threads processes square
// tiles of scores: thread (ty, tx) owns the rows ty, ty + 16, … and the columns tx, tx + 16, … of
// every tile, so that a row belongs to half a warp. Heads are padded with zeros to kDim. There are
// no atomics: gradients of k and v are summed by the block that owns the keys, gradients of q by
// the block that owns the queries.
#include <limits>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/attention.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;

// Rows have kTile + 1 or kDim + 1 elements, so that accesses along a column use different banks.
template <class A, int kTile>
struct ScoreTile {
  A value[kTile][kTile + 1];
};
template <class A, int kTile, int kDim>
struct HeadTile {
  A value[kTile][kDim + 1];
};

// Loads rows [first, first + kTile) of one head, with zeros beyond `rows` and `dim`.
template <int kTile, int kDim, class T, class A>
__device__ void load_tile(HeadTile<A, kTile, kDim>& tile, const Heads<T>& x, int b, int h,
                          int first, int rows, int dim) {
  for (int i = threadIdx.x; i < kTile * kDim; i += kThreads) {
    const int r = i / kDim, d = i % kDim;
    tile.value[r][d] = first + r < rows && d < dim ? up(x.row(b, first + r, h)[d]) : A(0);
  }
}

// The ALiBi bias of a key.
template <class A>
__device__ A alibi(const Sizes& sizes, A slope, int key) {
  return slope * static_cast<A>(sizes.mask.key_positions.of(key));
}

// c[i][j] += a[ty + 16 i] . b[tx + 16 j]: this thread's elements of A B^T
template <int kTile, int kDim, class A>
__device__ void multiply_transposed(A (&c)[kTile / kSide][kTile / kSide],
                                    const HeadTile<A, kTile, kDim>& a,
                                    const HeadTile<A, kTile, kDim>& b, int ty, int tx) {
  constexpr int kOwn = kTile / kSide;
#pragma unroll 8
  for (int d = 0; d < kDim; ++d) {
    A x[kOwn], y[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) x[i] = a.value[ty + kSide * i][d];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) y[j] = b.value[tx + kSide * j][d];
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int j = 0; j < kOwn; ++j) c[i][j] += x[i] * y[j];
  }
}

// c[i][j] += sum over r of p[ty + 16 i][r] x[r][tx + 16 j]: this thread's elements of P X
template <int kTile, int kDim, class A>
__device__ void multiply(A (&c)[kTile / kSide][kDim / kSide], const ScoreTile<A, kTile>& p,
                         const HeadTile<A, kTile, kDim>& x, int ty, int tx) {
  constexpr int kOwn = kTile / kSide, kColumns = kDim / kSide;
#pragma unroll 4
  for (int r = 0; r < kTile; ++r) {
    A weight[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) weight[i] = p.value[ty + kSide * i][r];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const A y = x.value[r][tx + kSide * j];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) c[i][j] += weight[i] * y;
    }
  }
}

// Stores this thread's rows ty + 16 i of a tile.
template <int kTile, int kDim, class T, class A>
__device__ void store_tile(const Heads<T>& x, const A (&c)[kTile / kSide][kDim / kSide], int b,
                           int h, int first, int rows, int dim, int ty, int tx) {
#pragma unroll
  for (int i = 0; i < kTile / kSide; ++i) {
    const int row = first + ty + kSide * i;
    if (row >= rows) continue;
    T* to = x.row(b, row, h);
#pragma unroll
    for (int j = 0; j < kDim / kSide; ++j) {
      const int d = tx + kSide * j;
      if (d < dim) to[d] = down<T>(c[i][j]);
    }
  }
}

template <class A>
__device__ A half_warp_max(A x) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    const A other = shuffle_xor(x, offset);
    x = other > x ? other : x;
  }
  return x;
}

__device__ inline float natural_exp(float x) { return expf(x); }
__device__ inline double natural_exp(double x) { return exp(x); }
__device__ inline float natural_log(float x) { return logf(x); }
__device__ inline double natural_log(double x) { return log(x); }

// ---- forward: one block per (query tile, head, sequence)

template <class A, int kTile, int kDim>
struct ForwardShared {
  HeadTile<A, kTile, kDim> q, kv;
  ScoreTile<A, kTile> p;
};

template <class T, int kTile, int kDim>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Heads<T> out, Rows<Acc<T>> lse, Heads<const T> q, Heads<const T> k,
                   Heads<const T> v, Sizes sizes) {
  using A = Acc<T>;
  constexpr int kOwn = kTile / kSide;
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  unsigned char* const memory = dynamic_shared();
  auto& shared = *reinterpret_cast<ForwardShared<A, kTile, kDim>*>(memory);
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int b = blockIdx.z, h = blockIdx.y, kv_h = h / (sizes.heads / sizes.kv_heads);
  const int query0 = (gridDim.x - 1 - blockIdx.x) * kTile;  // the longest rows first
  const Visible visible(sizes, b);
  const A scale = static_cast<A>(sizes.scale);
  const A slope = sizes.slopes ? static_cast<A>(sizes.slopes[h]) : A(0);

  load_tile<kTile, kDim>(shared.q, q, b, h, query0, sizes.queries, sizes.dim);
  A sum_of_rows[kOwn][kDim / kSide] = {};
  A largest[kOwn], total[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    largest[i] = -kInfinity;
    total[i] = A(0);
  }

  const KeyRange keys = visible.span(query0, kTile).any;
  for (int key0 = keys.begin / kTile * kTile; key0 < keys.end; key0 += kTile) {
    __syncthreads();  // the previous tile is no longer read
    load_tile<kTile, kDim>(shared.kv, k, b, kv_h, key0, sizes.keys, sizes.dim);
    __syncthreads();
    A s[kOwn][kOwn] = {};
    multiply_transposed<kTile, kDim>(s, shared.q, shared.kv, ty, tx);

#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const KeyRange seen = visible.keys(query0 + ty + kSide * i);
      A row_max = -kInfinity;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int key = key0 + tx + kSide * j;
        s[i][j] = seen.has(key) ? s[i][j] * scale + alibi(sizes, slope, key) : -kInfinity;
        row_max = s[i][j] > row_max ? s[i][j] : row_max;
      }
      row_max = half_warp_max(row_max);
      const A new_largest = row_max > largest[i] ? row_max : largest[i];
      // For a row that has seen no key yet, any finite reference makes the exponentials 0.
      const A reference = new_largest == -kInfinity ? A(0) : new_largest;
      const A correction = natural_exp(largest[i] - reference);
      largest[i] = new_largest;
      A row_total = A(0);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const A p = natural_exp(s[i][j] - reference);
        row_total += p;
        shared.p.value[ty + kSide * i][tx + kSide * j] = p;
      }
      total[i] = total[i] * correction + warp_sum<kSide>(row_total);
#pragma unroll
      for (int j = 0; j < kDim / kSide; ++j) sum_of_rows[i][j] *= correction;
    }
    __syncthreads();  // k is no longer read, p is complete
    load_tile<kTile, kDim>(shared.kv, v, b, kv_h, key0, sizes.keys, sizes.value_dim);
    __syncthreads();
    multiply<kTile, kDim>(sum_of_rows, shared.p, shared.kv, ty, tx);
  }

#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int query = query0 + ty + kSide * i;
    // A row that saw no key has sums and output 0, and a log-sum-exp of -infinity.
    const A divisor = total[i] == A(0) ? A(1) : total[i];
#pragma unroll
    for (int j = 0; j < kDim / kSide; ++j) sum_of_rows[i][j] /= divisor;
    if (query < sizes.queries && tx == 0) lse.of(b, h)[query] = largest[i] + natural_log(total[i]);
  }
  store_tile<kTile, kDim>(out, sum_of_rows, b, h, query0, sizes.queries, sizes.value_dim, ty, tx);
}

// ---- backward

// row_sum (batch, heads, queries) = sum over value_dim of dout * out; one warp per row
template <class T>
__global__ void __launch_bounds__(kThreads)
    row_sum_kernel(Rows<Acc<T>> row_sum, Heads<const T> dout, Heads<const T> out, Sizes sizes) {
  const int query = blockIdx.x * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int b = blockIdx.z, h = blockIdx.y;
  if (query >= sizes.queries) return;
  const T* x = dout.row(b, query, h);
  const T* y = out.row(b, query, h);
  Acc<T> sum = 0;
  for (int d = lane; d < sizes.value_dim; d += 32) sum += up(x[d]) * up(y[d]);
  sum = warp_sum(sum);
  if (lane == 0) row_sum.of(b, h)[query] = sum;
}

template <class A, int kTile, int kDim>
struct BackwardShared {
  HeadTile<A, kTile, kDim> q, dout, k, v;
  ScoreTile<A, kTile> p, ds;
  A lse[kTile], row_sum[kTile];
};

template <int kTile, class A>
__device__ void load_rows(A (&to)[kTile], const A* rows, int query0, int queries) {
  if (threadIdx.x < kTile) {
    const int query = query0 + threadIdx.x;
    to[threadIdx.x] = query < queries ? rows[query] : A(0);
  }
}

// dk and dv: one block per (key tile, key head, sequence), which loops over the query heads of the
// group and the queries that see the tile
template <class T, int kTile, int kDim>
__global__ void __launch_bounds__(kThreads)
    key_gradient_kernel(Heads<T> dk, Heads<T> dv, Heads<const T> dout, Rows<const Acc<T>> lse,
                        Rows<const Acc<T>> row_sum, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, Sizes sizes) {
  using A = Acc<T>;
  constexpr int kOwn = kTile / kSide;
  unsigned char* const memory = dynamic_shared();
  auto& shared = *reinterpret_cast<BackwardShared<A, kTile, kDim>*>(memory);
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int b = blockIdx.z, kv_h = blockIdx.y, group = sizes.heads / sizes.kv_heads;
  const int key0 = blockIdx.x * kTile;
  const Visible visible(sizes, b);
  const A scale = static_cast<A>(sizes.scale);

  load_tile<kTile, kDim>(shared.k, k, b, kv_h, key0, sizes.keys, sizes.dim);
  load_tile<kTile, kDim>(shared.v, v, b, kv_h, key0, sizes.keys, sizes.value_dim);
  A dk_sum[kOwn][kDim / kSide] = {};
  A dv_sum[kOwn][kDim / kSide] = {};

  const int first_query = static_cast<int>(visible.mask.first_query(key0)) / kTile * kTile;
  for (int h = kv_h * group; h < (kv_h + 1) * group; ++h) {
    const A slope = sizes.slopes ? static_cast<A>(sizes.slopes[h]) : A(0);
    for (int query0 = first_query; query0 < sizes.queries; query0 += kTile) {
      // The tile is before the window of this and all later queries, or in other documents.
      if (visible.mask.begin(query0) >= key0 + kTile) break;
      if (!visible.span(query0, kTile).sees(key0, key0 + kTile)) continue;
      __syncthreads();  // the previous tile is no longer read
      load_tile<kTile, kDim>(shared.q, q, b, h, query0, sizes.queries, sizes.dim);
      load_tile<kTile, kDim>(shared.dout, dout, b, h, query0, sizes.queries, sizes.value_dim);
      load_rows<kTile>(shared.lse, lse.of(b, h), query0, sizes.queries);
      load_rows<kTile>(shared.row_sum, row_sum.of(b, h), query0, sizes.queries);
      __syncthreads();

      // Transposed: rows are keys, columns are queries.
      A s[kOwn][kOwn] = {};
      A dp[kOwn][kOwn] = {};
      multiply_transposed<kTile, kDim>(s, shared.k, shared.q, ty, tx);
      multiply_transposed<kTile, kDim>(dp, shared.v, shared.dout, ty, tx);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int column = tx + kSide * j;
        const KeyRange keys = visible.keys(query0 + column);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const int key = key0 + ty + kSide * i;
          const bool seen = keys.has(key);
          const A p =
              seen ? natural_exp(s[i][j] * scale + alibi(sizes, slope, key) - shared.lse[column])
                   : A(0);
          shared.p.value[ty + kSide * i][column] = p;
          shared.ds.value[ty + kSide * i][column] =
              seen ? p * (dp[i][j] - shared.row_sum[column]) * scale : A(0);
        }
      }
      __syncthreads();
      multiply<kTile, kDim>(dv_sum, shared.p, shared.dout, ty, tx);
      multiply<kTile, kDim>(dk_sum, shared.ds, shared.q, ty, tx);
    }
  }
  store_tile<kTile, kDim>(dk, dk_sum, b, kv_h, key0, sizes.keys, sizes.dim, ty, tx);
  store_tile<kTile, kDim>(dv, dv_sum, b, kv_h, key0, sizes.keys, sizes.value_dim, ty, tx);
}

// dq: one block per (query tile, head, sequence), which loops over the keys that the queries see
template <class T, int kTile, int kDim>
__global__ void __launch_bounds__(kThreads)
    query_gradient_kernel(Heads<T> dq, Heads<const T> dout, Rows<const Acc<T>> lse,
                          Rows<const Acc<T>> row_sum, Heads<const T> q, Heads<const T> k,
                          Heads<const T> v, Sizes sizes) {
  using A = Acc<T>;
  constexpr int kOwn = kTile / kSide;
  unsigned char* const memory = dynamic_shared();
  auto& shared = *reinterpret_cast<BackwardShared<A, kTile, kDim>*>(memory);
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int b = blockIdx.z, h = blockIdx.y, kv_h = h / (sizes.heads / sizes.kv_heads);
  const int query0 = (gridDim.x - 1 - blockIdx.x) * kTile;
  const Visible visible(sizes, b);
  const A scale = static_cast<A>(sizes.scale);
  const A slope = sizes.slopes ? static_cast<A>(sizes.slopes[h]) : A(0);

  load_tile<kTile, kDim>(shared.q, q, b, h, query0, sizes.queries, sizes.dim);
  load_tile<kTile, kDim>(shared.dout, dout, b, h, query0, sizes.queries, sizes.value_dim);
  load_rows<kTile>(shared.lse, lse.of(b, h), query0, sizes.queries);
  load_rows<kTile>(shared.row_sum, row_sum.of(b, h), query0, sizes.queries);
  A dq_sum[kOwn][kDim / kSide] = {};

  const KeyRange keys = visible.span(query0, kTile).any;
  for (int key0 = keys.begin / kTile * kTile; key0 < keys.end; key0 += kTile) {
    __syncthreads();
    load_tile<kTile, kDim>(shared.k, k, b, kv_h, key0, sizes.keys, sizes.dim);
    load_tile<kTile, kDim>(shared.v, v, b, kv_h, key0, sizes.keys, sizes.value_dim);
    __syncthreads();
    A s[kOwn][kOwn] = {};
    A dp[kOwn][kOwn] = {};
    multiply_transposed<kTile, kDim>(s, shared.q, shared.k, ty, tx);
    multiply_transposed<kTile, kDim>(dp, shared.dout, shared.v, ty, tx);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = ty + kSide * i;
      const KeyRange row_keys = visible.keys(query0 + row);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int key = key0 + tx + kSide * j;
        const bool seen = row_keys.has(key);
        const A p =
            seen ? natural_exp(s[i][j] * scale + alibi(sizes, slope, key) - shared.lse[row]) : A(0);
        shared.ds.value[row][tx + kSide * j] =
            seen ? p * (dp[i][j] - shared.row_sum[row]) * scale : A(0);
      }
    }
    __syncthreads();
    multiply<kTile, kDim>(dq_sum, shared.ds, shared.k, ty, tx);
  }
  store_tile<kTile, kDim>(dq, dq_sum, b, h, query0, sizes.queries, sizes.dim, ty, tx);
}

// ---- launchers

// The largest tiles that fit into the shared memory of every GPU of NVIDIA that is supported (99
// KiB), and into kSharedBytes. The smallest tile of the backward of fp64 heads of 256 needs 134
// KiB.
template <template <class, int, int> class Shared, class A, int kDim, int kTile>
constexpr int fitting_tile() {
  if constexpr (kTile > kSide && sizeof(Shared<A, kTile, kDim>) > kSharedBytes) {
    return fitting_tile<Shared, A, kDim, kTile / 2>();
  } else {
    return kTile;
  }
}
template <class A, int kDim>
constexpr int kForwardTile = fitting_tile<
    ForwardShared, A, kDim, sizeof(A) == 4 ? (kDim <= 128 ? 64 : 32) : (kDim <= 128 ? 32 : 16)>();
template <class A, int kDim>
constexpr int kBackwardTile = fitting_tile<BackwardShared, A, kDim,
                                           sizeof(A) == 4 ? (kDim <= 64    ? 64
                                                             : kDim <= 128 ? 32
                                                                           : 16)
                                                          : (kDim <= 64 ? 32 : 16)>();

// Calls f.template operator()<T, kDim>()
template <class F>
void visit_kernel(const Tensor& q, const Tensor& v, F&& f) {
  const std::int64_t dim = largest_head(q, v);
  visit_device_float(q.dtype(), [&]<class T>() {
    if (dim <= 64)
      f.template operator()<T, 64>();
    else if (dim <= 128)
      f.template operator()<T, 128>();
    else
      f.template operator()<T, 256>();
  });
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, std::size_t shared_bytes, Stream stream,
            Arguments... arguments) {
  launch_attention(kernel, blocks, kThreads, shared_bytes, stream, arguments...);
}

}  // namespace

Sizes attention_sizes(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options) {
  const auto extent = [](const Tensor& x, int i) { return static_cast<int>(x.extent(i)); };
  KINTSUGI_CHECK(largest_head(q, v) <= 256, "attention heads have {} elements; the maximum is 256",
                 largest_head(q, v));
  KINTSUGI_CHECK(q.extent(0) < 65536 && q.extent(2) < 65536, "attention of {}",
                 to_string(q.shape()));
  Sizes sizes{.heads = extent(q, 2),
              .kv_heads = extent(k, 2),
              .queries = extent(q, 1),
              .keys = extent(k, 1),
              .dim = extent(q, 3),
              .value_dim = extent(v, 3),
              .mask = AttentionMask(options, q.extent(1), k.extent(1)),
              .scale = options.scale,
              .slopes = nullptr,
              .starts = nullptr,
              .start_stride = 0};
  if (options.alibi_slopes) sizes.slopes = options.alibi_slopes.as<float>();
  if (options.document_start) {
    sizes.starts = options.document_start.as<std::int32_t>();
    sizes.start_stride = options.document_start.stride(0);
  }
  return sizes;
}

void flash_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                   const AttentionOptions& options, MatrixUnits units, Stream stream) {
  if (units == MatrixUnits::Use && matrix_attention_forward(out, lse, q, k, v, options, stream))
    return;
  const Sizes sizes = attention_sizes(q, k, v, options);
  visit_kernel(q, v, [&]<class T, int kDim>() {
    constexpr int kTile = kForwardTile<Acc<T>, kDim>;
    launch(forward_kernel<T, kTile, kDim>,
           attention_blocks(q.extent(1), kTile, q.extent(2), q.extent(0)),
           sizeof(ForwardShared<Acc<T>, kTile, kDim>), stream, heads_of<T>(out),
           rows_of_heads<Acc<T>>(lse), heads_of<const T>(q), heads_of<const T>(k),
           heads_of<const T>(v), sizes);
  });
}

std::size_t flash_backward_scratch_bytes(const Tensor& q) {
  return static_cast<std::size_t>(q.extent(0) * q.extent(1) * q.extent(2)) *
         size_of(accumulator_of(q.dtype()));
}

void flash_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                    Tensor k, Tensor v, const AttentionOptions& options, MatrixUnits units,
                    void* scratch, Stream stream) {
  if (units == MatrixUnits::Use &&
      matrix_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, options,
                                static_cast<float*>(scratch), stream))
    return;
  const Sizes sizes = attention_sizes(q, k, v, options);
  visit_kernel(q, v, [&]<class T, int kDim>() {
    using A = Acc<T>;
    constexpr int kTile = kBackwardTile<A, kDim>;
    constexpr std::size_t kSharedBytes = sizeof(BackwardShared<A, kTile, kDim>);
    const Rows<A> row_sum{static_cast<A*>(scratch), q.extent(2) * q.extent(1), q.extent(1)};
    const Rows<const A> row_sum_in{row_sum.data, row_sum.batch, row_sum.head};
    const Rows<const A> lse_in = rows_of_heads<const A>(lse);
    launch(row_sum_kernel<T>,
           attention_blocks(q.extent(1), kThreads / 32, q.extent(2), q.extent(0)), 0, stream,
           row_sum, heads_of<const T>(dout), heads_of<const T>(out), sizes);
    launch(key_gradient_kernel<T, kTile, kDim>,
           attention_blocks(k.extent(1), kTile, k.extent(2), q.extent(0)), kSharedBytes, stream,
           heads_of<T>(dk), heads_of<T>(dv), heads_of<const T>(dout), lse_in, row_sum_in,
           heads_of<const T>(q), heads_of<const T>(k), heads_of<const T>(v), sizes);
    launch(query_gradient_kernel<T, kTile, kDim>,
           attention_blocks(q.extent(1), kTile, q.extent(2), q.extent(0)), kSharedBytes, stream,
           heads_of<T>(dq), heads_of<const T>(dout), lse_in, row_sum_in, heads_of<const T>(q),
           heads_of<const T>(k), heads_of<const T>(v), sizes);
  });
}

}  // namespace kintsugi::gpu
