// Tiled attention (the flash algorithm): 64 x 64 tiles of scores, an online softmax forward, and a
// backward that rebuilds each tile from the log-sum-exp. The (queries, keys) matrix never exists.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/attention_mask.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/tiles.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kTile = 64;

// Elements of a head: of queries and keys, and of values and outputs.
struct HeadSizes {
  std::int64_t dim, value_dim;
};

// The keys that a query sees, and the ALiBi bias of this head.
template <class A>
struct Mask : AttentionMask {
  Mask(const AttentionOptions& options, std::int64_t batch, std::int64_t head, std::int64_t queries,
       std::int64_t keys, const std::vector<std::int32_t>& alibi_positions)
      : AttentionMask(options, queries, keys),
        slope(options.alibi_slopes ? static_cast<A>(options.alibi_slopes.as<float>()[head]) : A(0)),
        positions(alibi_positions.empty() ? nullptr : alibi_positions.data()),
        start(options.document_start ? options.document_start.as<std::int32_t>() +
                                           batch * options.document_start.stride(0)
                                     : nullptr) {}
  std::int64_t first_key(std::int64_t query) const {
    return start == nullptr ? begin(query) : std::max<std::int64_t>(begin(query), start[query]);
  }
  // The visible columns [first, last) of a tile row; column j is key key0 + j.
  std::int64_t first_column(std::int64_t query, std::int64_t key0, std::int64_t columns) const {
    return std::clamp<std::int64_t>(first_key(query) - key0, 0, columns);
  }
  std::int64_t last_column(std::int64_t query, std::int64_t key0, std::int64_t columns) const {
    return std::clamp<std::int64_t>(end(query) - key0, 0, columns);
  }
  // The first key tile that queries from query0 on see: document starts never decrease along a
  // sequence.
  std::int64_t first_tile(std::int64_t query0) const { return first_key(query0) / kTile * kTile; }

  void add_alibi(A* scores, std::int64_t rows, std::int64_t columns, std::int64_t key0) const {
    if (slope == A(0)) return;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        scores[i * kTile + j] +=
            slope * static_cast<A>(positions == nullptr ? key0 + j : positions[key0 + j]);
  }

  A slope;
  const std::int32_t* positions;
  const std::int32_t* start;
};

template <class T>
void forward_tile(const HeadView<T>& out, Accumulator<T>* lse, const HeadView<T>& q,
                  const HeadView<T>& k, const HeadView<T>& v, const Mask<Accumulator<T>>& mask,
                  std::int64_t query0, std::int64_t rows, const HeadSizes& head,
                  Accumulator<T> scale, Accumulator<T>* scratch) {
  using A = Accumulator<T>;
  const std::int64_t dim = head.dim, value_dim = head.value_dim;
  A* scores = scratch;                       // (64, 64)
  A* result = scores + kTile * kTile;        // (64, value_dim)
  A* buffer_q = result + kTile * value_dim;  // (64, dim), for a widened tile
  A* buffer_kv = buffer_q + kTile * dim;     // (64, the larger of both), likewise
  A running_max[kTile], running_sum[kTile];
  std::fill(running_max, running_max + rows, -std::numeric_limits<A>::infinity());
  std::fill(running_sum, running_sum + rows, A(0));
  std::fill(result, result + rows * value_dim, A(0));

  const Tile<A> tile_q = load_tile<T, A>(q, query0, rows, dim, buffer_q);
  const std::int64_t key_end = mask.end(query0 + rows - 1);
  for (std::int64_t key0 = mask.first_tile(query0); key0 < key_end; key0 += kTile) {
    const std::int64_t columns = std::min(kTile, key_end - key0);
    tile_matmul(scores, kTile, rows, columns, dim, tile_q, false,
                load_tile<T, A>(k, key0, columns, dim, buffer_kv), true, scale, A(0));
    mask.add_alibi(scores, rows, columns, key0);
    for (std::int64_t i = 0; i < rows; ++i) {
      A* s = scores + i * kTile;
      const std::int64_t begin = mask.first_column(query0 + i, key0, columns),
                         end = mask.last_column(query0 + i, key0, columns);
      A largest = running_max[i];
#pragma omp simd reduction(max : largest)
      for (std::int64_t j = begin; j < end; ++j) largest = std::max(largest, s[j]);
      std::fill(s, s + begin, A(0));
      std::fill(s + std::max(begin, end), s + columns, A(0));
      if (begin >= end) continue;
      const A shrink = running_max[i] == largest ? A(1) : vector_exp(running_max[i] - largest);
      A total = 0;
#pragma omp simd reduction(+ : total)
      for (std::int64_t j = begin; j < end; ++j) {
        s[j] = vector_exp(s[j] - largest);
        total += s[j];
      }
      running_sum[i] = running_sum[i] * shrink + total;
      running_max[i] = largest;
      if (shrink != A(1))
        for (std::int64_t d = 0; d < value_dim; ++d) result[i * value_dim + d] *= shrink;
    }
    tile_matmul(result, value_dim, rows, value_dim, columns, {scores, kTile}, false,
                load_tile<T, A>(v, key0, columns, value_dim, buffer_kv), false, A(1), A(1));
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const A inverse =
        running_sum[i] > A(0) ? A(1) / running_sum[i] : A(0);  // 0: the query sees no key
    for (std::int64_t d = 0; d < value_dim; ++d)
      out.row(query0 + i)[d] = static_cast<T>(result[i * value_dim + d] * inverse);
    lse[query0 + i] = running_max[i] + std::log(running_sum[i]);
  }
}

// Writes dq of one query head and adds its contribution to dk (keys, dim) and dv (keys, value_dim),
// both in accumulator precision.
template <class T>
void backward_head(const HeadView<T>& dq, Accumulator<T>* dk, Accumulator<T>* dv,
                   const HeadView<T>& dout, const HeadView<T>& out, const Accumulator<T>* lse,
                   const HeadView<T>& q, const HeadView<T>& k, const HeadView<T>& v,
                   const Mask<Accumulator<T>>& mask, std::int64_t queries, const HeadSizes& head,
                   Accumulator<T> scale, Accumulator<T>* scratch) {
  using A = Accumulator<T>;
  const std::int64_t dim = head.dim, value_dim = head.value_dim;
  A* probabilities = scratch;                  // (64, 64)
  A* dscores = probabilities + kTile * kTile;  // (64, 64)
  A* dquery = dscores + kTile * kTile;         // (64, dim)
  A* buffer_q = dquery + kTile * dim;          // like q, k, v and dout, for widened tiles
  A* buffer_k = buffer_q + kTile * dim;
  A* buffer_v = buffer_k + kTile * dim;
  A* buffer_do = buffer_v + kTile * value_dim;
  A delta[kTile];  // row sums of dout * out

  for (std::int64_t query0 = 0; query0 < queries; query0 += kTile) {
    const std::int64_t rows = std::min(kTile, queries - query0);
    const Tile<A> tile_q = load_tile<T, A>(q, query0, rows, dim, buffer_q);
    const Tile<A> tile_do = load_tile<T, A>(dout, query0, rows, value_dim, buffer_do);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T *o = out.row(query0 + i), *g = dout.row(query0 + i);
      A total = 0;
#pragma omp simd reduction(+ : total)
      for (std::int64_t d = 0; d < value_dim; ++d)
        total += static_cast<A>(o[d]) * static_cast<A>(g[d]);
      delta[i] = total;
    }
    std::fill(dquery, dquery + rows * dim, A(0));
    const std::int64_t key_end = mask.end(query0 + rows - 1);
    for (std::int64_t key0 = mask.first_tile(query0); key0 < key_end; key0 += kTile) {
      const std::int64_t columns = std::min(kTile, key_end - key0);
      const Tile<A> tile_k = load_tile<T, A>(k, key0, columns, dim, buffer_k);
      const Tile<A> tile_v = load_tile<T, A>(v, key0, columns, value_dim, buffer_v);
      tile_matmul(probabilities, kTile, rows, columns, dim, tile_q, false, tile_k, true, scale,
                  A(0));
      tile_matmul(dscores, kTile, rows, columns, value_dim, tile_do, false, tile_v, true, A(1),
                  A(0));
      mask.add_alibi(probabilities, rows, columns, key0);
      for (std::int64_t i = 0; i < rows; ++i) {
        A *p = probabilities + i * kTile, *ds = dscores + i * kTile;
        const std::int64_t begin = mask.first_column(query0 + i, key0, columns);
        const std::int64_t end = std::max(begin, mask.last_column(query0 + i, key0, columns));
        const A log_sum = lse[query0 + i], d = delta[i];
        std::fill(p, p + begin, A(0));
        std::fill(ds, ds + begin, A(0));
#pragma omp simd
        for (std::int64_t j = begin; j < end; ++j) {
          p[j] = vector_exp(p[j] - log_sum);
          ds[j] = p[j] * (ds[j] - d) * scale;
        }
        std::fill(p + end, p + columns, A(0));
        std::fill(ds + end, ds + columns, A(0));
      }
      tile_matmul(dv + key0 * value_dim, value_dim, columns, value_dim, rows,
                  {probabilities, kTile}, true, tile_do, false, A(1), A(1));
      tile_matmul(dk + key0 * dim, dim, columns, dim, rows, {dscores, kTile}, true, tile_q, false,
                  A(1), A(1));
      tile_matmul(dquery, dim, rows, dim, columns, {dscores, kTile}, false, tile_k, false, A(1),
                  A(1));
    }
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t d = 0; d < dim; ++d)
        dq.row(query0 + i)[d] = static_cast<T>(dquery[i * dim + d]);
  }
}

// The positions of the keys for ALiBi; empty if they are 0, 1, 2, … or without ALiBi.
std::vector<std::int32_t> alibi_positions(const AttentionOptions& options, std::int64_t keys) {
  if (!options.alibi_slopes || options.key_positions == TokenPositions{}) return {};
  std::vector<std::int32_t> positions;
  for (std::int64_t key = 0; key < keys; ++key)
    positions.push_back(static_cast<std::int32_t>(options.key_positions.of(key)));
  return positions;
}

struct Sizes : HeadSizes {
  Sizes(const Tensor& q, const Tensor& k, const Tensor& v)
      : HeadSizes{q.extent(3), v.extent(3)},
        batch(q.extent(0)),
        queries(q.extent(1)),
        heads(q.extent(2)),
        keys(k.extent(1)),
        kv_heads(k.extent(2)) {}
  std::int64_t batch, queries, heads, keys, kv_heads;
};

// Merges attention over two sets of keys by their log-sum-exps.
template <class O, class T>
void merge_row(O* out, Accumulator<T>& lse, const T* part, Accumulator<T> part_lse,
               std::int64_t dim) {
  using A = Accumulator<T>;
  if (part_lse == -std::numeric_limits<A>::infinity()) return;
  const A top = std::max(lse, part_lse);
  const A weight = std::exp(lse - top), part_weight = std::exp(part_lse - top);
  const A total = weight + part_weight;
  for (std::int64_t i = 0; i < dim; ++i)
    out[i] = static_cast<O>(
        (weight * static_cast<A>(out[i]) + part_weight * static_cast<A>(part[i])) / total);
  lse = top + std::log(total);
}

}  // namespace

void CpuBackend::do_attention_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                                      const AttentionOptions& options) {
  const Sizes n(q, k, v);
  const std::int64_t group = n.heads / n.kv_heads, tiles = (n.queries + kTile - 1) / kTile;
  const std::vector<std::int32_t> positions = alibi_positions(options, n.keys);
  visit_float(q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    reserve_scratch<A>(kTile * (kTile + n.dim + n.value_dim + std::max(n.dim, n.value_dim)));
    pool_.run(n.batch * n.heads * tiles, [&](std::int64_t task, int thread) {
      const std::int64_t b = task / tiles / n.heads, h = task / tiles % n.heads;
      const std::int64_t query0 =
          (tiles - 1 - task % tiles) * kTile;  // longest rows first, for load balance
      forward_tile<T>(HeadView<T>(out, b, h), lse.as<A>() + b * lse.stride(0) + h * lse.stride(1),
                      HeadView<T>(q, b, h), HeadView<T>(k, b, h / group),
                      HeadView<T>(v, b, h / group),
                      Mask<A>(options, b, h, n.queries, n.keys, positions), query0,
                      std::min(kTile, n.queries - query0), n, static_cast<A>(options.scale),
                      scratch<A>(thread));
    });
  });
}

void CpuBackend::do_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                       Tensor lse, Tensor q, Tensor k, Tensor v,
                                       const AttentionOptions& options) {
  const Sizes n(q, k, v);
  const std::int64_t group = n.heads / n.kv_heads;
  const std::vector<std::int32_t> positions = alibi_positions(options, n.keys);
  visit_float(q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t sums = n.keys * (n.dim + n.value_dim);
    reserve_scratch<A>(sums + kTile * (2 * kTile + 3 * n.dim + 2 * n.value_dim));
    pool_.run(n.batch * n.kv_heads, [&](std::int64_t task, int thread) {
      const std::int64_t b = task / n.kv_heads, kv = task % n.kv_heads;
      A* const dkey = scratch<A>(thread);
      A* const dvalue = dkey + n.keys * n.dim;
      std::fill(dkey, dkey + sums, A(0));
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h)
        backward_head<T>(HeadView<T>(dq, b, h), dkey, dvalue, HeadView<T>(dout, b, h),
                         HeadView<T>(out, b, h),
                         lse.as<A>() + b * lse.stride(0) + h * lse.stride(1), HeadView<T>(q, b, h),
                         HeadView<T>(k, b, kv), HeadView<T>(v, b, kv),
                         Mask<A>(options, b, h, n.queries, n.keys, positions), n.queries, n,
                         static_cast<A>(options.scale), dkey + sums);
      const HeadView<T> dk_out(dk, b, kv), dv_out(dv, b, kv);
      for (std::int64_t token = 0; token < n.keys; ++token) {
        for (std::int64_t d = 0; d < n.dim; ++d)
          dk_out.row(token)[d] = static_cast<T>(dkey[token * n.dim + d]);
        for (std::int64_t d = 0; d < n.value_dim; ++d)
          dv_out.row(token)[d] = static_cast<T>(dvalue[token * n.value_dim + d]);
      }
    });
  });
}

void CpuBackend::do_attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse) {
  const std::int64_t batch = out.extent(0), queries = out.extent(1), heads = out.extent(2);
  visit_float(part_out.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const auto merge = [&]<class O>(O* whole) {
      pool_.run_ranges(batch * queries, 16, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t b = row / queries, i = row % queries;
          for (std::int64_t h = 0; h < heads; ++h)
            merge_row(whole + b * out.stride(0) + i * out.stride(1) + h * out.stride(2),
                      lse.as<A>()[b * lse.stride(0) + h * lse.stride(1) + i],
                      part_out.as<T>() + b * part_out.stride(0) + i * part_out.stride(1) +
                          h * part_out.stride(2),
                      part_lse.as<A>()[b * part_lse.stride(0) + h * part_lse.stride(1) + i],
                      out.extent(3));
        }
      });
    };
    out.dtype() == part_out.dtype() ? merge(out.as<T>()) : merge(out.as<A>());
  });
}

}  // namespace kintsugi
