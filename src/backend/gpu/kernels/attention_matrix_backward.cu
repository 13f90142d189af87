// The backward of attention on the matrix units. Probabilities P are computed again from the
// log-sum-exps; with the row sums of dO * O,
//
//   dS = P * (dO V^T - row sum),   dQ = scale dS K,   dK = scale dS^T Q,   dV = P^T dO.
//
// dK and dV are summed by the block that owns the keys, which computes P and dS transposed; dQ by
// the block that owns the queries. The next tile is copied while one is in use.
#include "backend/gpu/kernels/attention_matrix.cuh"

namespace kintsugi::gpu {
namespace {

// ---- row sums

// row_sum (batch, heads, queries) = sum over value_dim of dout * out; kLanes threads per row
template <class T, int kLanes>
__global__ void __launch_bounds__(256)
    row_sum_kernel(Rows<float> row_sum, Heads<const T> dout, Heads<const T> out, Sizes sizes) {
  const int query = static_cast<int>(blockIdx.x) * (256 / kLanes) + threadIdx.x / kLanes;
  const int b = blockIdx.z, h = blockIdx.y, d = threadIdx.x % kLanes * 8;
  float sum = 0.0f;
  if (query < sizes.queries && d < sizes.value_dim) {
    const Vec<T> x = load_vec(dout.row(b, query, h) + d), y = load_vec(out.row(b, query, h) + d);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += up(x.v[e]) * up(y.v[e]);
  }
  sum = warp_sum<kLanes>(sum);
  if (query < sizes.queries && d == 0) row_sum.of(b, h)[query] = sum;
}

// A query's log-sum-exp in powers of 2, and its row sum. Probabilities are 0 for a query that sees
// no key and for a row beyond the last one.
struct QueryRow {
  __device__ static QueryRow of(const float* lse, const float* row_sum, int query, int queries) {
    if (query >= queries) return {INFINITY, 0.0f};
    const float x = lse[query];
    return {x == -INFINITY ? INFINITY : x * kLog2E, row_sum[query]};
  }
  float log2_lse, row_sum;
};

// ---- dk and dv: one block per (key tile, key head, sequence), which loops over the query heads of
// the group and the queries that see the tile

template <class T, int kDim>
struct KeyShape {
  using F = Fragments<T>;
  // Tiles of 16 keys per wave, and how many waves share the columns of the same keys: as many sums
  // as the registers hold.
  static constexpr int kRowTiles = kMma && kDim <= 64 ? 2 : 1;
  static constexpr int kSplits = kMma && kDim > 128 ? 2 : 1;
  static constexpr int kWaves = kMma ? (kDim <= 64 ? 4 : 8) : kDim <= 128 ? 4 : 1;
  static constexpr int kThreads = kWaves * F::kLanes;
  static constexpr int kWaveRows = 16 * kRowTiles, kKeys = kWaves / kSplits * kWaveRows;
  static constexpr int kWaveColumns = kDim / kSplits;

  template <int kQueries>
  struct Tiles {
    SharedTile<T, kKeys, kDim> k, v;
    SharedTile<T, kQueries, kDim> q[2], dout[2];
    QueryRow row[2][kQueries];
  };
  template <int kQueries>
  static constexpr bool kTilesFit = sizeof(Tiles<kQueries>) <= kMatrixSharedBytes;
  static constexpr int kQueries = kTilesFit<64> ? 64 : kTilesFit<32> ? 32 : 16;
  static constexpr int kStep = kQueries < 32 ? kQueries : 32;  // queries at a time
  using Shared = Tiles<kQueries>;
  static constexpr bool kFits = kTilesFit<kQueries>;
};

// The tiles of queries, of all heads of a group, that see a range of keys.
template <int kQueries>
struct QueryTiles {
  const Visible& visible;
  int head_end, key_begin, key_end, first_query;
  // The current tile; h == head_end: there is none.
  int h, query0;
  KeySpan span = {};

  __device__ QueryTiles(const Visible& visible, int kv_h, int group, int key_begin, int key_end)
      : visible(visible),
        head_end((kv_h + 1) * group),
        key_begin(key_begin),
        key_end(key_end),
        first_query(static_cast<int>(visible.mask.first_query(key_begin)) / kQueries * kQueries),
        h(kv_h * group),
        query0(first_query) {
    find();
  }
  __device__ bool any() const { return h < head_end; }
  __device__ void advance() {
    query0 += kQueries;
    find();
  }
  // Moves on to the first tile, from the current one, that sees the keys.
  __device__ void find() {
    for (; h < head_end; ++h, query0 = first_query)
      // Beyond the windows of all later queries there is nothing more to find.
      for (; query0 < visible.mask.queries && visible.mask.begin(query0) < key_end;
           query0 += kQueries) {
        span = visible.span(query0, kQueries);
        if (span.sees(key_begin, key_end)) return;
      }
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__((KeyShape<T, kDim>::kThreads))
    key_gradient_kernel(Heads<T> dk, Heads<T> dv, Heads<const T> dout, Rows<const float> lse,
                        Rows<const float> row_sum, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, Sizes sizes) {
  using Shape = KeyShape<T, kDim>;
  using F = typename Shape::F;
  using Sums = typename F::Sums;
  constexpr int kThreads = Shape::kThreads, kQueries = Shape::kQueries, kStep = Shape::kStep;
  constexpr int kRowTiles = Shape::kRowTiles, kColumnTiles = Shape::kWaveColumns / 16;
  unsigned char* const memory = dynamic_shared();
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const int thread = threadIdx.x, wave = thread / F::kLanes, lane = thread % F::kLanes;
  const int b = blockIdx.z, kv_h = blockIdx.y, tile0 = blockIdx.x * Shape::kKeys;
  const int wave_row = wave / Shape::kSplits * Shape::kWaveRows, key0 = tile0 + wave_row;
  const int column0 = wave % Shape::kSplits * Shape::kWaveColumns;
  const Visible visible(sizes, b);

  QueryTiles<kQueries> tile(visible, kv_h, sizes.heads / sizes.kv_heads, tile0,
                            min(sizes.keys, tile0 + Shape::kKeys));
  const auto copy_queries = [&](int stage) {
    copy_rows<kThreads>(shared.q[stage], q, b, tile.h, tile.query0, sizes.queries, sizes.dim);
    copy_rows<kThreads>(shared.dout[stage], dout, b, tile.h, tile.query0, sizes.queries,
                        sizes.value_dim);
  };
  const auto query_row = [&] {
    return QueryRow::of(lse.of(b, tile.h), row_sum.of(b, tile.h), tile.query0 + thread,
                        sizes.queries);
  };
  copy_rows<kThreads>(shared.k, k, b, kv_h, tile0, sizes.keys, sizes.dim);
  copy_rows<kThreads>(shared.v, v, b, kv_h, tile0, sizes.keys, sizes.value_dim);
  if (tile.any()) {
    copy_queries(0);
    if (thread < kQueries) shared.row[0][thread] = query_row();
  }
  commit_copies();

  Sums dk_sum[kRowTiles][kColumnTiles], dv_sum[kRowTiles][kColumnTiles];
  for (int stage = 0; tile.any(); stage = 1 - stage) {
    const int h = tile.h, query0 = tile.query0;
    const KeySpan span = tile.span;
    wait_for_copies<0>();
    __syncthreads();  // this tile is complete, the previous one no longer read
    tile.advance();
    QueryRow next = {};
    if (tile.any()) {
      copy_queries(1 - stage);
      if (thread < kQueries) next = query_row();
    }
    commit_copies();

    const Scores scores(sizes, h);
    const bool sees = span.sees(key0, key0 + Shape::kWaveRows);
    const bool sees_all = span.sees_all(key0, key0 + Shape::kWaveRows);
#pragma unroll 1
    for (int step = 0; sees && step < kQueries; step += kStep) {
      // Transposed: rows are keys, columns are queries.
      Sums s[kRowTiles][kStep / 16], dp[kRowTiles][kStep / 16];
      multiply_rows<F, kDim>(s, shared.k, wave_row, shared.q[stage], step, lane);
      multiply_rows<F, kDim>(dp, shared.v, wave_row, shared.dout[stage], step, lane);
      if (sizes.slopes)
        for_rows<F, kRowTiles>(lane, [&](int r, int i, int row) {
          const float bias = scores.bias(key0 + row);
          for_columns<F, kStep / 16>(lane, [&](int n, int j, int) { s[r][n].at(i, j) += bias; });
        });
      if (!sees_all)
        for_columns<F, kStep / 16>(lane, [&](int n, int j, int column) {
          const KeyRange keys = visible.keys(query0 + step + column);
          for_rows<F, kRowTiles>(lane, [&](int r, int i, int row) {
            if (!keys.has(key0 + row)) s[r][n].at(i, j) = -INFINITY;
          });
        });
      for_columns<F, kStep / 16>(lane, [&](int n, int j, int column) {
        const QueryRow query = shared.row[stage][step + column];
        for_rows<F, kRowTiles>(lane, [&](int r, int i, int) {
          float& p = s[r][n].at(i, j);
          float& ds = dp[r][n].at(i, j);
          p = fast_exp2(p * scores.log2_scale - query.log2_lse);
          ds = p * (ds - query.row_sum);
        });
      });
      multiply_weights<F>(dv_sum, s, shared.dout[stage], step, column0, lane);
      multiply_weights<F>(dk_sum, dp, shared.q[stage], step, column0, lane);
    }
    if (tile.any() && thread < kQueries) shared.row[1 - stage][thread] = next;
  }
  wait_for_copies<0>();
  for_rows<F, kRowTiles>(lane, [&](int r, int i, int) {
    for_columns<F, kColumnTiles>(
        lane, [&](int n, int j, int) { dk_sum[r][n].at(i, j) *= static_cast<float>(sizes.scale); });
  });
  store_rows<F>(dk, dk_sum, b, kv_h, key0, sizes.keys, column0, sizes.dim, lane);
  store_rows<F>(dv, dv_sum, b, kv_h, key0, sizes.keys, column0, sizes.value_dim, lane);
}

// ---- dq: one block per (query tile, head, sequence), which loops over the keys that the queries
// see

template <class T, int kDim>
struct QueryShape {
  using F = Fragments<T>;
  static constexpr int kWaves = kMma || kDim <= 128 ? 4 : 1, kThreads = kWaves * F::kLanes;
  static constexpr int kRowTiles = kMma && kDim <= 128 ? 2 : 1;
  static constexpr int kWaveRows = 16 * kRowTiles, kQueries = kWaves * kWaveRows;

  template <int kKeys>
  struct Tiles {
    SharedTile<T, kQueries, kDim> q, dout;
    SharedTile<T, kKeys, kDim> k[2], v[2];
  };
  template <int kKeys>
  static constexpr bool kTilesFit = sizeof(Tiles<kKeys>) <= kMatrixSharedBytes;
  static constexpr int kKeys = kTilesFit<64> ? 64 : kTilesFit<32> ? 32 : 16;
  static constexpr int kStep = kKeys < 32 ? kKeys : 32;  // keys at a time
  using Shared = Tiles<kKeys>;
  static constexpr bool kFits = kTilesFit<kKeys>;
};

template <class T, int kDim>
__global__ void __launch_bounds__((QueryShape<T, kDim>::kThreads))
    query_gradient_kernel(Heads<T> dq, Heads<const T> dout, Rows<const float> lse,
                          Rows<const float> row_sum, Heads<const T> q, Heads<const T> k,
                          Heads<const T> v, Sizes sizes) {
  using Shape = QueryShape<T, kDim>;
  using F = typename Shape::F;
  using Sums = typename F::Sums;
  constexpr int kThreads = Shape::kThreads, kKeys = Shape::kKeys, kStep = Shape::kStep;
  constexpr int kRowTiles = Shape::kRowTiles;
  unsigned char* const memory = dynamic_shared();
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const int wave = threadIdx.x / F::kLanes, lane = threadIdx.x % F::kLanes;
  const int b = blockIdx.z, h = blockIdx.y, kv_h = h / (sizes.heads / sizes.kv_heads);
  const int tile0 = (gridDim.x - 1 - blockIdx.x) * Shape::kQueries;  // the longest rows first
  const int wave_row = wave * Shape::kWaveRows, query0 = tile0 + wave_row;
  const Visible visible(sizes, b);
  const Scores scores(sizes, h);
  const KeyRange keys = visible.span(tile0, Shape::kQueries).any;
  const KeySpan span = visible.span(query0, Shape::kWaveRows);

  const auto copy_keys = [&](int stage, int key0) {
    copy_rows<kThreads>(shared.k[stage], k, b, kv_h, key0, sizes.keys, sizes.dim);
    copy_rows<kThreads>(shared.v[stage], v, b, kv_h, key0, sizes.keys, sizes.value_dim);
  };
  copy_rows<kThreads>(shared.q, q, b, h, tile0, sizes.queries, sizes.dim);
  copy_rows<kThreads>(shared.dout, dout, b, h, tile0, sizes.queries, sizes.value_dim);
  int tile_key = keys.begin / kKeys * kKeys;
  copy_keys(0, tile_key);
  commit_copies();
  QueryRow query[kRowTiles][F::kOwnRows];
  for_rows<F, kRowTiles>(lane, [&](int r, int i, int row) {
    query[r][i] = QueryRow::of(lse.of(b, h), row_sum.of(b, h), query0 + row, sizes.queries);
  });

  Sums dq_sum[kRowTiles][kDim / 16];
  for (int stage = 0; tile_key < keys.end; tile_key += kKeys, stage = 1 - stage) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is complete, the previous one no longer read
    if (tile_key + kKeys < keys.end) copy_keys(1 - stage, tile_key + kKeys);
    commit_copies();
#pragma unroll 1
    for (int step = 0; step < kKeys; step += kStep) {
      const int key0 = tile_key + step;
      if (!span.sees(key0, key0 + kStep)) continue;
      Sums s[kRowTiles][kStep / 16], dp[kRowTiles][kStep / 16];
      multiply_rows<F, kDim>(s, shared.q, wave_row, shared.k[stage], step, lane);
      multiply_rows<F, kDim>(dp, shared.dout, wave_row, shared.v[stage], step, lane);
      if (sizes.slopes) add_biases<F>(s, scores, key0, lane);
      if (!span.sees_all(key0, key0 + kStep)) hide_unseen<F>(s, visible, query0, key0, lane);
      for_rows<F, kRowTiles>(lane, [&](int r, int i, int) {
        for_columns<F, kStep / 16>(lane, [&](int n, int j, int) {
          const float p = fast_exp2(s[r][n].at(i, j) * scores.log2_scale - query[r][i].log2_lse);
          float& ds = dp[r][n].at(i, j);
          ds = p * (ds - query[r][i].row_sum);
        });
      });
      multiply_weights<F>(dq_sum, dp, shared.k[stage], step, 0, lane);
    }
  }
  wait_for_copies<0>();
  for_rows<F, kRowTiles>(lane, [&](int r, int i, int) {
    for_columns<F, kDim / 16>(
        lane, [&](int n, int j, int) { dq_sum[r][n].at(i, j) *= static_cast<float>(sizes.scale); });
  });
  store_rows<F>(dq, dq_sum, b, h, query0, sizes.queries, 0, sizes.dim, lane);
}

template <class T, int kDim>
void launch_row_sums(const Rows<float>& row_sum, const Tensor& dout, const Tensor& out,
                     const Sizes& sizes, Stream stream) {
  constexpr int kLanes = kDim <= 64 ? 8 : kDim <= 128 ? 16 : 32;
  launch_attention(row_sum_kernel<T, kLanes>,
                   attention_blocks(out.extent(1), 256 / kLanes, out.extent(2), out.extent(0)), 256,
                   0, stream, row_sum, heads_of<const T>(dout), heads_of<const T>(out), sizes);
}

}  // namespace

bool matrix_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                               const Tensor& dout, const Tensor& out, const Tensor& lse,
                               const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionOptions& options, float* row_sum, Stream stream) {
  return visit_matrix_kernel(q, v, [&]<class T, int kDim>() {
    using ForKeys = KeyShape<T, kDim>;
    using ForQueries = QueryShape<T, kDim>;
    if constexpr (!ForKeys::kFits || !ForQueries::kFits) {
      return false;
    } else {
      if (!matrix_operands<T>(options, q, k, v, out, dout, dq, dk, dv)) return false;
      const Sizes sizes = attention_sizes(q, k, v, options);
      const Rows<float> sums{row_sum, q.extent(2) * q.extent(1), q.extent(1)};
      const Rows<const float> sums_in{sums.data, sums.batch, sums.head};
      const Rows<const float> lse_in = rows_of_heads<const float>(lse);
      launch_row_sums<T, kDim>(sums, dout, out, sizes, stream);
      launch_attention(key_gradient_kernel<T, kDim>,
                       attention_blocks(k.extent(1), ForKeys::kKeys, k.extent(2), k.extent(0)),
                       ForKeys::kThreads, sizeof(typename ForKeys::Shared), stream, heads_of<T>(dk),
                       heads_of<T>(dv), heads_of<const T>(dout), lse_in, sums_in,
                       heads_of<const T>(q), heads_of<const T>(k), heads_of<const T>(v), sizes);
      launch_attention(
          query_gradient_kernel<T, kDim>,
          attention_blocks(q.extent(1), ForQueries::kQueries, q.extent(2), q.extent(0)),
          ForQueries::kThreads, sizeof(typename ForQueries::Shared), stream, heads_of<T>(dq),
          heads_of<const T>(dout), lse_in, sums_in, heads_of<const T>(q), heads_of<const T>(k),
          heads_of<const T>(v), sizes);
      return true;
    }
  });
}

}  // namespace kintsugi::gpu
