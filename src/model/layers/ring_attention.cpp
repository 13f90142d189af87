#include "model/layers/ring_attention.h"

#include <algorithm>
#include <utility>

#include "model/shard.h"

namespace kintsugi {
namespace {

// The first elements of a buffer, in this shape.
Tensor first_of(const Tensor& buffer, const Shape& shape) {
  return buffer.rows(0, shape.elements()).view(shape);
}

Tensor flat(const Tensor& x) { return x.view({x.elements()}); }

}  // namespace

RingAttention::RingAttention(Backend& backend, Arena& arena, Communicator& group,
                             const ContextAttentionSizes& sizes, DType dtype, bool training,
                             Tensor alibi_slopes)
    : backend_(&backend), group_(&group), sizes_(sizes), dtype_(dtype), slopes_(alibi_slopes) {
  KINTSUGI_CHECK(group.size() > 1, "ring attention needs more than one rank");
  KINTSUGI_CHECK(sizes.length % 2 == 0 && sizes.heads % sizes.kv_heads == 0,
                 "ring attention of {} tokens, {} heads over {}", sizes.length, sizes.heads,
                 sizes.kv_heads);
  const std::int64_t tokens = sizes.sequences * sizes.length;
  const std::int64_t wide = tokens * sizes.heads * std::max(sizes.head_dim, sizes.value_dim),
                     pair = tokens * sizes.kv_heads * (sizes.head_dim + sizes.value_dim);
  const DType accumulator = accumulator_of(dtype);
  const bool narrow = dtype != accumulator;
  const auto workspace = [&](const char* name, DType type, std::int64_t elements) {
    return arena.allocate(Region::Workspace, name, type, {elements});
  };
  const auto buffers = [&](const char* name, DType type) -> std::array<Tensor, 2> {
    return {arena.allocate(Region::Communication, name, type, {pair}),
            arena.allocate(Region::Communication, name, type, {pair})};
  };
  kv_ = buffers("ring keys and values", dtype);
  partial_ = workspace("ring partial output", dtype, wide);
  partial_lse_ = workspace("ring partial log-sum-exp", accumulator, tokens * sizes.heads);
  if (narrow || training) sum_ = workspace("ring sum", accumulator, wide);
  if (!training) return;
  dkv_partial_ = workspace("ring key and value gradients", dtype, pair);
  dkv_sum_ = buffers("ring key and value gradients", accumulator);
}

RingAttention::Pair RingAttention::pair(const Tensor& buffer, std::int64_t sequences) const {
  const Shape k{sequences, sizes_.length, sizes_.kv_heads, sizes_.head_dim},
      v{sequences, sizes_.length, sizes_.kv_heads, sizes_.value_dim};
  const Tensor both = buffer.rows(0, k.elements() + v.elements());
  return {both, first_of(both, k), first_of(both.rows(k.elements(), v.elements()), v)};
}

RingAttention::Pair RingAttention::pack(const Tensor& k, const Tensor& v) const {
  const Pair packed = pair(kv_[0], k.extent(0));
  backend_->copy(packed.k.flatten_first(), k.flatten_first());
  backend_->copy(packed.v.flatten_first(), v.flatten_first());
  return packed;
}

TokenPositions RingAttention::positions(int rank) const {
  const ContextShard shard{group_->size(), rank, group_->size() * sizes_.length};
  const std::int64_t half = sizes_.length / 2;
  return {.first = shard.position(0), .chunk = half, .second = shard.position(half)};
}

// Rank r holds chunks r and 2n - 1 - r of the sequence. Of a lower rank's chunks, one is before and
// one after all of ours. A higher rank's chunks are both between ours.
RingAttention::Visible RingAttention::visible(int source, std::int64_t sequences, double scale,
                                              const Tensor& first_keys, std::int64_t window) const {
  const int own = group_->rank();
  const std::int64_t length = sizes_.length, half = length / 2;
  Visible result{.first_query = source > own ? half : 0,
                 .queries = source > own ? half : length,
                 .keys = source < own ? half : length,
                 .options = {.scale = scale,
                             .alibi_slopes = slopes_,
                             .window = window,
                             .key_positions = positions(source),
                             .query_positions = positions(own)}};
  if (source > own) result.options.query_positions = TokenPositions{.first = positions(own).second};
  if (first_keys)
    result.options.document_start = result.of(first_keys.rows(source * sequences, sequences));
  return result;
}

int RingAttention::sources(std::int64_t window) const {
  int count = 0;
  for (int step = 1; step < group_->size(); ++step)
    count += visible(source(step), 0, 1, {}, window).any() ? 1 : 0;
  return count;
}

void RingAttention::check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                          const Tensor& first_keys) const {
  const std::int64_t sequences = q.extent(0);
  KINTSUGI_CHECK(
      sequences <= sizes_.sequences && q.dtype() == dtype_ &&
          q.shape() == (Shape{sequences, sizes_.length, sizes_.heads, sizes_.head_dim}) &&
          k.shape() == (Shape{sequences, sizes_.length, sizes_.kv_heads, sizes_.head_dim}) &&
          v.shape() == (Shape{sequences, sizes_.length, sizes_.kv_heads, sizes_.value_dim}) &&
          lse.shape() == (Shape{sequences, sizes_.heads, sizes_.length}),
      "ring attention of queries {} over keys {} and values {}, log-sum-exp {}",
      to_string(q.shape()), to_string(k.shape()), to_string(v.shape()), to_string(lse.shape()));
  KINTSUGI_CHECK(
      !first_keys || first_keys.shape() == (Shape{group_->size() * sequences, sizes_.length}),
      "first keys {} of queries {} on {} ranks", to_string(first_keys.shape()),
      to_string(q.shape()), group_->size());
}

RingAttention::Transfer RingAttention::send_to_next(const Pair& current, const Pair& next) const {
  const int ranks = group_->size(), rank = group_->rank();
  return {group_->send(current.both, (rank + 1) % ranks),
          group_->receive(next.both, (rank + ranks - 1) % ranks)};
}

void RingAttention::wait(const Transfer& transfer) const {
  group_->wait(transfer.received);
  group_->wait(transfer.sent);
}

void RingAttention::forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, double scale,
                            Tensor first_keys, std::int64_t window) const {
  check(q, k, v, lse, first_keys);
  const std::int64_t sequences = q.extent(0);
  // One merge is rounded once, wherever the sum is.
  const bool apart = dtype_ != accumulator_of(dtype_) && sources(window) > 1;
  const Tensor sum = apart ? first_of(sum_, out.shape()) : out;
  Pair current = pack(k, v), next = pair(kv_[1], sequences);
  for (int step = 0; step < group_->size(); ++step) {
    Transfer transfer;
    if (step + 1 < group_->size()) transfer = send_to_next(current, next);
    const Visible seen = visible(source(step), sequences, scale, first_keys, window);
    const Tensor partial = first_of(partial_, seen.of(out).shape());
    if (step == 0) {
      backend_->attention_forward(out, lse, q, k, v, seen.options);
      if (apart) backend_->copy(sum.flatten_first(), out.flatten_first());
    } else if (seen.any()) {
      const Tensor partial_lse = partial_lse_.rows(0, sequences * sizes_.heads * seen.queries)
                                     .view({sequences, sizes_.heads, seen.queries});
      backend_->attention_forward(partial, partial_lse, seen.of(q), seen.with(current.k),
                                  seen.with(current.v), seen.options);
      backend_->attention_merge(seen.of(sum), seen.of_lse(lse), partial, partial_lse);
    }
    wait(transfer);
    std::swap(current, next);
  }
  if (apart) backend_->copy(out.flatten_first(), sum.flatten_first());
}

void RingAttention::add_to(const Tensor& sum, const Tensor& partial) const {
  if (sum.contiguous()) return backend_->add(sum, partial);
  for (std::int64_t sequence = 0; sequence < sum.extent(0); ++sequence)
    backend_->add(sum.rows(sequence, 1), partial.rows(sequence, 1));
}

void RingAttention::add_remote(const Tensor& gradient, const Tensor& others,
                               const Tensor& buffer) const {
  backend_->copy(buffer.flatten_first(), gradient.flatten_first());
  add_to(others, buffer);
  backend_->copy(gradient.flatten_first(), others.flatten_first());
}

void RingAttention::backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                             Tensor q, Tensor k, Tensor v, double scale, Tensor first_keys,
                             std::int64_t window) const {
  check(q, k, v, lse, first_keys);
  KINTSUGI_CHECK(dkv_partial_, "ring attention was not built for training");
  const std::int64_t sequences = q.extent(0);
  const Tensor sum = first_of(sum_, q.shape());
  Pair current = pack(k, v), next = pair(kv_[1], sequences);
  Pair dcurrent = pair(dkv_sum_[0], sequences), dnext = pair(dkv_sum_[1], sequences);
  const Pair dpartial = pair(dkv_partial_, sequences);
  Transfer gradients;  // of dk and dv, in flight while this rank computes
  for (int step = 0; step < group_->size(); ++step) {
    Transfer transfer;
    if (step + 1 < group_->size()) transfer = send_to_next(current, next);
    const Visible seen = visible(source(step), sequences, scale, first_keys, window);
    const Tensor partial = first_of(partial_, seen.of(q).shape());
    if (step == 0) {
      backend_->attention_backward(partial, dk, dv, dout, out, lse, q, k, v, seen.options);
      backend_->copy(sum, partial);
    } else {
      const Tensor partial_dk = first_of(flat(dpartial.k), seen.with(k).shape()),
                   partial_dv = first_of(flat(dpartial.v), seen.with(v).shape());
      const bool any = seen.any();
      if (any) {
        backend_->attention_backward(partial, partial_dk, partial_dv, seen.of(dout), seen.of(out),
                                     seen.of_lse(lse), seen.of(q), seen.with(current.k),
                                     seen.with(current.v), seen.options);
        add_to(seen.of(sum), partial);
      }
      wait(gradients);
      if (step == 1) backend_->fill(dcurrent.both, 0);  // this rank is the first to add to them
      if (any) {
        add_to(seen.with(dcurrent.k), partial_dk);
        add_to(seen.with(dcurrent.v), partial_dv);
      }
      gradients = send_to_next(dcurrent, dnext);
      std::swap(dcurrent, dnext);
    }
    wait(transfer);
    std::swap(current, next);
  }
  backend_->copy(dq.flatten_first(), sum.flatten_first());
  wait(gradients);
  add_remote(dk, dcurrent.k, dpartial.k);
  add_remote(dv, dcurrent.v, dpartial.v);
}

}  // namespace kintsugi
