// The forward of attention on the matrix units. One block per (query tile, head, sequence); values
// are copied while the scores are computed, and the next keys while the values are in use.
#include "backend/gpu/kernels/attention_matrix.cuh"

namespace kintsugi::gpu {
namespace {

template <class T, int kDim>
struct ForwardShape {
  using F = Fragments<T>;
  static constexpr int kWaves = 4, kThreads = kWaves * F::kLanes;
  // Two tiles of rows per warp halve the reads of keys and values, where registers suffice.
  static constexpr int kRowTiles = kMma && kDim <= 128 ? 2 : 1;
  static constexpr int kWaveRows = 16 * kRowTiles, kQueries = kWaves * kWaveRows;
  static constexpr int kKeys = kMma || kDim <= 128 ? 64 : 16;

  struct Shared {
    SharedTile<T, kQueries, kDim> q;
    SharedTile<T, kKeys, kDim> k, v;
  };
  static constexpr bool kFits = sizeof(Shared) <= kMatrixSharedBytes;
};

// The softmax and the output of a wave's queries, so far.
template <class T, int kDim>
struct ForwardRows {
  using Shape = ForwardShape<T, kDim>;
  using F = typename Shape::F;
  static constexpr int kRowTiles = Shape::kRowTiles, kKeyTiles = Shape::kKeys / 16;

  typename F::Sums out[kRowTiles][kDim / 16];
  float largest[kRowTiles][F::kOwnRows], total[kRowTiles][F::kOwnRows];  // total: of this lane

  __device__ explicit ForwardRows(int lane) {
    for_rows<F, kRowTiles>(lane, [&](int r, int i, int) {
      largest[r][i] = -INFINITY;
      total[r][i] = 0.0f;
    });
  }

  // Replaces the scores of a tile by their exponentials, and scales what was summed before.
  __device__ void exponentials(typename F::Sums (&s)[kRowTiles][kKeyTiles], float log2_scale,
                               int lane) {
    for_rows<F, kRowTiles>(lane, [&](int r, int i, int) {
      float now = largest[r][i];
      for_columns<F, kKeyTiles>(lane,
                                [&](int n, int j, int) { now = fmaxf(now, s[r][n].at(i, j)); });
      now = F::row_max(now);
      // For a row that has seen no key yet, any finite base makes the exponentials 0.
      const float base = now == -INFINITY ? 0.0f : now * log2_scale;
      const float shrink = fast_exp2(largest[r][i] * log2_scale - base);
      largest[r][i] = now;
      float sum = 0.0f;
      for_columns<F, kKeyTiles>(lane, [&](int n, int j, int) {
        float& x = s[r][n].at(i, j);
        x = fast_exp2(x * log2_scale - base);
        sum += x;
      });
      total[r][i] = total[r][i] * shrink + sum;
      for_columns<F, kDim / 16>(lane, [&](int n, int j, int) { out[r][n].at(i, j) *= shrink; });
    });
  }

  // Divides the output by the sums and stores log-sum-exps. A row that saw no key has sums and
  // output 0, and a log-sum-exp of -infinity.
  __device__ void finish(float* lse, int queries, int query0, float log2_scale, int lane) {
    for_rows<F, kRowTiles>(lane, [&](int r, int i, int row) {
      const float sum = F::row_sum(total[r][i]), inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      for_columns<F, kDim / 16>(lane, [&](int n, int j, int) { out[r][n].at(i, j) *= inverse; });
      if (query0 + row < queries && F::column(lane, 0) == 0)
        lse[query0 + row] = (largest[r][i] * log2_scale + log2f(sum)) * kLn2;
    });
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__((ForwardShape<T, kDim>::kThreads))
    forward_kernel(Heads<T> out, Rows<float> lse, Heads<const T> q, Heads<const T> k,
                   Heads<const T> v, Sizes sizes) {
  using Shape = ForwardShape<T, kDim>;
  using F = typename Shape::F;
  constexpr int kThreads = Shape::kThreads, kKeys = Shape::kKeys, kRowTiles = Shape::kRowTiles;
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

  copy_rows<kThreads>(shared.q, q, b, h, tile0, sizes.queries, sizes.dim);
  int key0 = keys.begin / kKeys * kKeys;
  copy_rows<kThreads>(shared.k, k, b, kv_h, key0, sizes.keys, sizes.dim);
  commit_copies();
  ForwardRows<T, kDim> rows(lane);
  for (; key0 < keys.end; key0 += kKeys) {
    const bool sees = span.sees(key0, key0 + kKeys);
    wait_for_copies<0>();
    __syncthreads();  // the keys are complete, the previous values no longer read
    copy_rows<kThreads>(shared.v, v, b, kv_h, key0, sizes.keys, sizes.value_dim);
    commit_copies();
    typename F::Sums s[kRowTiles][kKeys / 16];
    if (sees) multiply_rows<F, kDim>(s, shared.q, wave_row, shared.k, 0, lane);
    wait_for_copies<0>();
    __syncthreads();  // the values are complete, the keys no longer read
    if (key0 + kKeys < keys.end)
      copy_rows<kThreads>(shared.k, k, b, kv_h, key0 + kKeys, sizes.keys, sizes.dim);
    commit_copies();
    if (!sees) continue;
    if (sizes.slopes) add_biases<F>(s, scores, key0, lane);
    if (!span.sees_all(key0, key0 + kKeys)) hide_unseen<F>(s, visible, query0, key0, lane);
    rows.exponentials(s, scores.log2_scale, lane);
    multiply_weights<F>(rows.out, s, shared.v, 0, 0, lane);
  }
  wait_for_copies<0>();
  rows.finish(lse.of(b, h), sizes.queries, query0, scores.log2_scale, lane);
  store_rows<F>(out, rows.out, b, h, query0, sizes.queries, 0, sizes.value_dim, lane);
}

}  // namespace

bool matrix_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q,
                              const Tensor& k, const Tensor& v, const AttentionOptions& options,
                              Stream stream) {
  return visit_matrix_kernel(q, v, [&]<class T, int kDim>() {
    using Shape = ForwardShape<T, kDim>;
    if constexpr (!Shape::kFits) {
      return false;
    } else {
      if (!matrix_operands<T>(options, q, k, v, out)) return false;
      launch_attention(forward_kernel<T, kDim>,
                       attention_blocks(q.extent(1), Shape::kQueries, q.extent(2), q.extent(0)),
                       Shape::kThreads, sizeof(typename Shape::Shared), stream, heads_of<T>(out),
                       rows_of_heads<float>(lse), heads_of<const T>(q), heads_of<const T>(k),
                       heads_of<const T>(v), attention_sizes(q, k, v, options));
      return true;
    }
  });
}

}  // namespace kintsugi::gpu
