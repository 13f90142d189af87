#include "backend/checks/checks.h"

namespace kintsugi {

// q has several heads for each of the keys'; ALiBi's slopes may be empty.
void Checks::heads(std::int64_t heads, std::int64_t kv_heads, const Tensor& slopes) const {
  KINTSUGI_CHECK(kv_heads > 0 && heads % kv_heads == 0, "{}: {} heads for {} of the keys",
                 operation_, heads, kv_heads);
  if (slopes) list(slopes, heads, DType::F32);
}

void Checks::attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const AttentionOptions& o) const {
  ranked(q, 4, 4);
  const std::int64_t batch = q.extent(0), queries = q.extent(1), heads = q.extent(2),
                     keys = k.extent(1), kv_heads = k.extent(2);
  shaped(k, {batch, keys, kv_heads, q.extent(3)}, q.dtype());
  shaped(v, {batch, keys, kv_heads, v.extent(3)}, q.dtype());
  shaped(out, {batch, queries, heads, v.extent(3)}, q.dtype());
  shaped(lse, {batch, heads, queries}, accumulator_of(q.dtype()));
  this->heads(heads, kv_heads, o.alibi_slopes);
  KINTSUGI_CHECK(o.query_positions || queries <= keys, "{}: {} queries for {} keys", operation_,
                 queries, keys);
  if (o.document_start) shaped(o.document_start, {batch, queries}, DType::I32);
}

// The table and positions of `tokens` tokens whose heads have `dim` elements.
void Checks::rotation(const Tensor& table, const Tensor& positions, std::int64_t tokens,
                      std::int64_t dim, DType dtype) const {
  dense(table, {table.extent(0), dim}, accumulator_of(dtype));
  list(positions, tokens, DType::I32);
  KINTSUGI_CHECK(dim % 2 == 0, "{}: heads of {} elements have no pairs", operation_, dim);
}

void Checks::attention_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                               const AttentionOptions& options) const {
  attention(out, lse, q, k, v, options);
}

void Checks::attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                Tensor lse, Tensor q, Tensor k, Tensor v,
                                const AttentionOptions& options) const {
  attention(out, lse, q, k, v, options);
  like(q, dq);
  like(k, dk);
  like(v, dv);
  like(out, dout);
}

void Checks::attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse) const {
  ranked(part_out, 4, 4);
  const DType accumulator = accumulator_of(part_out.dtype());
  shaped(out, part_out.shape(), out.dtype() == part_out.dtype() ? out.dtype() : accumulator);
  shaped(lse, {out.extent(0), out.extent(2), out.extent(1)}, accumulator);
  like(lse, part_lse);
}

void Checks::rope(Tensor x, Tensor table, Tensor positions, bool, RopePairs) const {
  ranked(x, 3, 3);
  rotation(table, positions, x.extent(0), x.extent(2), x.dtype());
}

void Checks::rope_backward(Tensor x, Tensor table, Tensor positions, std::int64_t heads,
                           Maxima maxima) const {
  find_maxima(maxima, x, false);
  rotation(table, positions, x.extent(0), table.extent(1), x.dtype());
  KINTSUGI_CHECK(heads >= 0 && heads * table.extent(1) <= x.extent(1), "{}: {} heads of {} in {}",
                 operation_, heads, table.extent(1), to_string(x.shape()));
}

void Checks::sum_heads(Tensor y, Tensor x) const {
  ranked(x, 3, 3);
  shaped(y, {x.extent(0), x.extent(2)}, x.dtype());
}

void Checks::paged_attention(Tensor out, Tensor q, Tensor keys, Tensor values,
                             const PagedAttentionOptions& o) const {
  ranked(q, 3, 3);
  const std::int64_t pages = keys.extent(0), tokens = keys.extent(1), kv_heads = keys.extent(2),
                     value_dim = values.extent(3);
  dense(keys, {pages, tokens, kv_heads, q.extent(2)}, q.dtype());
  shaped(values, {pages, tokens, kv_heads, value_dim}, q.dtype());
  if (values.data() != keys.data()) contiguous(values);
  shaped(out, {q.extent(0), q.extent(1), value_dim}, q.dtype());
  heads(q.extent(1), kv_heads, o.alibi_slopes);
  dense(o.tiles, {o.tiles.extent(0), 4}, DType::I32);
  shaped(o.pages, {o.pages.extent(0), o.pages.extent(1)}, DType::I32);
}

void Checks::rope_store(Tensor keys, Tensor values, Tensor q, Tensor k, Tensor v, Tensor rows,
                        Tensor table, Tensor positions) const {
  ranked(q, 3, 3);
  shaped(k, {q.extent(0), k.extent(1), q.extent(2)}, q.dtype());
  like(k, v);
  scatter_rows(keys, k, rows);
  like(keys, values);
  if (table) rotation(table, positions, q.extent(0), q.extent(2), q.dtype());
}

}  // namespace kintsugi
