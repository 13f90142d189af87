// Attention to keys and values in pages. Queries are processed by tile and key-value head, keys in
// blocks of 64 that begin at multiples of 64. All sums of a query run in the same order whatever
// else is in its tile, so that no result depends on the batch.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kBlockKeys = 64;

// One tile of queries and one key-value head.
template <class T>
class PagedTile {
 public:
  using A = Accumulator<T>;

  PagedTile(const Tensor& q, const Tensor& keys, const Tensor& values,
            const PagedAttentionOptions& options, std::int64_t tile, std::int64_t kv_head,
            A* scratch)
      : options_(options),
        page_tokens_(keys.extent(1)),
        dim_(keys.extent(3)),
        value_dim_(values.extent(3)),
        kv_head_(kv_head),
        group_(q.extent(1) / keys.extent(2)),
        scratch_(scratch) {
    const std::int32_t* t = options.tiles.as<std::int32_t>() + tile * 4;
    first_ = t[0], tokens_ = t[1], position_ = t[3];
    pages_ = options.pages.as<std::int32_t>() + t[2] * options.pages.stride(0);
  }
  static std::int64_t scratch_elements(std::int64_t rows, std::int64_t dim,
                                       std::int64_t value_dim) {
    return rows * (dim + value_dim + kBlockKeys + 2) + kBlockKeys * (dim + value_dim);
  }

  void run(const Tensor& out, const Tensor& q, const Tensor& keys, const Tensor& values) {
    if (tokens_ == 0) return;
    rows_ = tokens_ * group_;
    queries_ = take(rows_ * dim_), result_ = take(rows_ * value_dim_);
    scores_ = take(rows_ * kBlockKeys), largest_ = take(rows_), sum_ = take(rows_);
    keys_ = take(kBlockKeys * dim_), values_ = take(kBlockKeys * value_dim_);
    load_queries(q);
    std::fill(result_, result_ + rows_ * value_dim_, A(0));
    std::fill(largest_, largest_ + rows_, -std::numeric_limits<A>::infinity());
    std::fill(sum_, sum_ + rows_, A(0));
    const std::int64_t end = position_ + tokens_;
    for (std::int64_t key0 = first_key(position_) / kBlockKeys * kBlockKeys; key0 < end;
         key0 += kBlockKeys) {
      load_keys(keys, values, key0, std::min(kBlockKeys, end - key0));
      for (std::int64_t row = 0; row < rows_; ++row) add_block(row, key0);
    }
    store(out);
  }

 private:
  A* take(std::int64_t elements) { return std::exchange(scratch_, scratch_ + elements); }
  std::int64_t first_key(std::int64_t position) const {
    return options_.window > 0 ? std::max<std::int64_t>(0, position + 1 - options_.window) : 0;
  }
  std::int64_t head_of(std::int64_t row) const { return kv_head_ * group_ + row % group_; }
  std::int64_t position_of(std::int64_t row) const { return position_ + row / group_; }
  static T* at(const Tensor& x, std::int64_t token, std::int64_t head) {
    return x.as<T>() + token * x.stride(0) + head * x.stride(1);
  }

  void load_queries(const Tensor& q) {
    for (std::int64_t row = 0; row < rows_; ++row) {
      const T* from = at(q, first_ + row / group_, head_of(row));
      for (std::int64_t d = 0; d < dim_; ++d)
        queries_[row * dim_ + d] = static_cast<A>(from[d]) * static_cast<A>(options_.scale);
    }
  }
  // Keys are transposed, (dim, 64), so that scores are computed for 64 keys at a time.
  void load_keys(const Tensor& keys, const Tensor& values, std::int64_t key0, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      const T *k = in_page(keys, key0 + j), *v = in_page(values, key0 + j);
      for (std::int64_t d = 0; d < dim_; ++d) keys_[d * kBlockKeys + j] = static_cast<A>(k[d]);
      for (std::int64_t d = 0; d < value_dim_; ++d)
        values_[j * value_dim_ + d] = static_cast<A>(v[d]);
    }
  }
  const T* in_page(const Tensor& x, std::int64_t key) const {
    return x.as<T>() + pages_[key / page_tokens_] * x.stride(0) + key % page_tokens_ * x.stride(1) +
           kv_head_ * x.stride(2);
  }

  void add_block(std::int64_t row, std::int64_t key0) {
    const std::int64_t position = position_of(row);
    const std::int64_t begin = std::clamp<std::int64_t>(first_key(position) - key0, 0, kBlockKeys),
                       end = std::clamp<std::int64_t>(position + 1 - key0, 0, kBlockKeys);
    if (begin >= end) return;
    A* const s = scores_ + row * kBlockKeys;
    A* const result = result_ + row * value_dim_;
    const A* const q = queries_ + row * dim_;
    std::fill(s, s + kBlockKeys, A(0));
    for (std::int64_t d = 0; d < dim_; ++d) {
      const A* const k = keys_ + d * kBlockKeys;
#pragma omp simd
      for (std::int64_t j = 0; j < kBlockKeys; ++j) s[j] += q[d] * k[j];
    }
    if (options_.alibi_slopes) {
      const A slope = static_cast<A>(options_.alibi_slopes.template as<float>()[head_of(row)]);
      for (std::int64_t j = 0; j < kBlockKeys; ++j) s[j] += slope * static_cast<A>(key0 + j);
    }
    A largest = largest_[row];
    for (std::int64_t j = begin; j < end; ++j) largest = std::max(largest, s[j]);
    const A shrink = largest_[row] == largest ? A(1) : vector_exp(largest_[row] - largest);
    A total = 0;
    for (std::int64_t j = begin; j < end; ++j) total += s[j] = vector_exp(s[j] - largest);
    largest_[row] = largest;
    sum_[row] = sum_[row] * shrink + total;
    if (shrink != A(1))
      for (std::int64_t d = 0; d < value_dim_; ++d) result[d] *= shrink;
    for (std::int64_t j = begin; j < end; ++j) {
      const A* const v = values_ + j * value_dim_;
#pragma omp simd
      for (std::int64_t d = 0; d < value_dim_; ++d) result[d] += s[j] * v[d];
    }
  }

  void store(const Tensor& out) const {
    for (std::int64_t row = 0; row < rows_; ++row) {
      T* to = at(out, first_ + row / group_, head_of(row));
      const A inverse = A(1) / sum_[row];  // a query sees at least itself
      for (std::int64_t d = 0; d < value_dim_; ++d)
        to[d] = static_cast<T>(result_[row * value_dim_ + d] * inverse);
    }
  }

  const PagedAttentionOptions& options_;
  std::int64_t page_tokens_, dim_, value_dim_, kv_head_, group_;
  std::int64_t first_ = 0, tokens_ = 0, position_ = 0, rows_ = 0;  // of queries
  const std::int32_t* pages_ = nullptr;
  A* scratch_;
  A *queries_ = nullptr, *result_ = nullptr;  // (rows, dim), (rows, value_dim)
  A* scores_ = nullptr;                       // (rows, 64)
  A *largest_ = nullptr, *sum_ = nullptr;     // (rows)
  A *keys_ = nullptr, *values_ = nullptr;     // (dim, 64), (64, value_dim)
};

}  // namespace

void CpuBackend::do_paged_attention(Tensor out, Tensor q, Tensor keys, Tensor values,
                                    const PagedAttentionOptions& options) {
  const std::int64_t heads = keys.extent(2), value_dim = values.extent(3);
  visit_float(q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    reserve_scratch<A>(PagedTile<T>::scratch_elements(options.tile_tokens * (q.extent(1) / heads),
                                                      q.extent(2), value_dim));
    pool_.run(options.tiles.extent(0) * heads, [&](std::int64_t task, int thread) {
      PagedTile<T>(q, keys, values, options, task / heads, task % heads, scratch<A>(thread))
          .run(out, q, keys, values);
    });
  });
}

}  // namespace kintsugi
