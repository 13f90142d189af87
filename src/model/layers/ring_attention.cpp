#include "model/layers/ring_attention.h"

#include <algorithm>
#include <limits>
#include <optional>
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
RingAttention::Block RingAttention::whole_block(int source, std::int64_t sequences,
                                                const AttentionOptions& options,
                                                const Tensor& first_keys) const {
  const int own = group_->rank();
  const std::int64_t length = sizes_.length, half = length / 2;
  Block result{.first_query = source > own ? half : 0,
               .queries = source > own ? half : length,
               .keys = source < own ? half : length,
               .options = options};
  result.options.key_positions = positions(source);
  result.options.query_positions =
      source > own ? TokenPositions{.first = positions(own).second} : positions(own);
  if (first_keys && sequences > 0)
    result.options.document_start = result.of(first_keys.rows(source * sequences, sequences));
  return result;
}

std::vector<RingAttention::Block> RingAttention::blocks(int source, std::int64_t sequences,
                                                        double scale, const Tensor& first_keys,
                                                        std::int64_t window) const {
  const AttentionOptions options{.scale = scale, .alibi_slopes = slopes_, .window = window};
  std::vector<Block> all;
  if (by_chunk(first_keys, window)) {
    const std::int64_t half = sizes_.length / 2;
    const TokenPositions own = positions(group_->rank()), theirs = positions(source);
    for (const std::int64_t query : {std::int64_t{0}, half})
      for (const std::int64_t key : {std::int64_t{0}, half}) {
        Block& block = all.emplace_back(Block{query, half, key, half, options});
        block.options.query_positions = TokenPositions{.first = own.of(query)};
        block.options.key_positions = TokenPositions{.first = theirs.of(key)};
      }
  } else {
    all.push_back(whole_block(source, sequences, options, first_keys));
  }
  std::erase_if(all, [](const Block& block) { return !block.any(); });
  return all;
}

int RingAttention::most_blocks(const Tensor& first_keys, std::int64_t window) const {
  std::array<int, 2> counts{};  // of the first and of the last query
  const std::int64_t last = sizes_.length - 1;
  for (int source = 0; source < group_->size(); ++source)
    for (const Block& block : blocks(source, 0, 1, first_keys, window)) {
      counts[0] += block.first_query == 0 ? 1 : 0;
      counts[1] += block.first_query + block.queries > last ? 1 : 0;
    }
  return std::max(counts[0], counts[1]);
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
  const bool chunks = by_chunk(first_keys, window);
  // One merge is rounded once, wherever the sum is.
  const bool apart = dtype_ != accumulator_of(dtype_) && most_blocks(first_keys, window) > 2;
  const Tensor sum = apart ? first_of(sum_, out.shape()) : out;
  Pair current = pack(k, v), next = pair(kv_[1], sequences);
  if (chunks) {
    backend_->fill(sum, 0);
    backend_->fill(lse, -std::numeric_limits<double>::infinity());
  }
  for (int step = 0; step < group_->size(); ++step) {
    Transfer transfer;
    if (step + 1 < group_->size()) transfer = send_to_next(current, next);
    for (const Block& block : blocks(source(step), sequences, scale, first_keys, window)) {
      if (step == 0 && !chunks) {
        backend_->attention_forward(out, lse, q, k, v, block.options);
        if (apart) backend_->copy(sum.flatten_first(), out.flatten_first());
        continue;
      }
      const Tensor partial = first_of(partial_, block.of(out).shape());
      const Tensor partial_lse = first_of(partial_lse_, {sequences, sizes_.heads, block.queries});
      backend_->attention_forward(partial, partial_lse, block.of(q), block.with(current.k),
                                  block.with(current.v), block.options);
      backend_->attention_merge(block.of(sum), block.of_lse(lse), partial, partial_lse);
    }
    wait(transfer);
    std::swap(current, next);
  }
  if (apart) backend_->copy(out.flatten_first(), sum.flatten_first());
}

void RingAttention::copy_halves(const Tensor& lse) const {
  const std::int64_t half = sizes_.length / 2, rows = lse.extent(0) * sizes_.heads;
  for (const std::int64_t first : {std::int64_t{0}, half})
    backend_->copy(first_of(partial_lse_.rows(rows * first, rows * half), {rows, half}),
                   lse.view({rows, sizes_.length}).part(1, first, half));
}

Tensor RingAttention::contiguous_lse(const Tensor& lse, const Block& block) const {
  if (block.queries == sizes_.length) return lse;
  const std::int64_t rows = lse.extent(0) * sizes_.heads;
  return first_of(partial_lse_.rows(rows * block.first_query, rows * block.queries),
                  {lse.extent(0), sizes_.heads, block.queries});
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

Tensor RingAttention::backward_of(const Block& block, const Tensor& dk, const Tensor& dv,
                                  const Tensor& dout, const Tensor& out, const Tensor& lse,
                                  const Tensor& q, const Pair& keys) const {
  const Tensor partial = first_of(partial_, block.of(q).shape());
  backend_->attention_backward(partial, dk, dv, block.of(dout), block.of(out),
                               contiguous_lse(lse, block), block.of(q), block.with(keys.k),
                               block.with(keys.v), block.options);
  return partial;
}

void RingAttention::backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                             Tensor q, Tensor k, Tensor v, double scale, Tensor first_keys,
                             std::int64_t window) const {
  check(q, k, v, lse, first_keys);
  KINTSUGI_CHECK(dkv_partial_, "ring attention was not built for training");
  const std::int64_t sequences = q.extent(0);
  const bool chunks = by_chunk(first_keys, window);
  const Tensor sum = first_of(sum_, q.shape());
  Pair current = pack(k, v), next = pair(kv_[1], sequences);
  Pair dcurrent = pair(dkv_sum_[0], sequences), dnext = pair(dkv_sum_[1], sequences);
  const Pair dpartial = pair(dkv_partial_, sequences);
  Transfer gradients;  // of dk and dv, in flight while this rank computes
  // Adds to the gradients of a block's keys, once those of other ranks have arrived.
  const auto add_block = [&](const Block& block, const Pair& keys) {
    const Tensor partial_dk = first_of(flat(dpartial.k), block.with(k).shape()),
                 partial_dv = first_of(flat(dpartial.v), block.with(v).shape());
    add_to(block.of(sum), backward_of(block, partial_dk, partial_dv, dout, out, lse, q, keys));
    wait(std::exchange(gradients, {}));
    add_to(block.with(dcurrent.k), partial_dk);
    add_to(block.with(dcurrent.v), partial_dv);
  };
  std::optional<Block> later;  // between the two chunks of this rank
  copy_halves(lse);
  for (int step = 0; step < group_->size(); ++step) {
    Transfer transfer;
    if (step + 1 < group_->size()) transfer = send_to_next(current, next);
    const auto seen = blocks(source(step), sequences, scale, first_keys, window);
    if (step == 0) {
      if (chunks) backend_->fill(sum, 0);
      for (const Block& block : seen) {
        if (block.first_query != block.first_key) {
          later = block;
          continue;
        }
        const Tensor partial =
            backward_of(block, block.with(dk), block.with(dv), dout, out, lse, q, {{}, k, v});
        chunks ? add_to(block.of(sum), partial) : backend_->copy(sum, partial);
      }
    } else {
      if (step == 1) backend_->fill(dcurrent.both, 0);  // this rank is the first to add to them
      for (const Block& block : seen) add_block(block, current);
      wait(std::exchange(gradients, {}));
      gradients = send_to_next(dcurrent, dnext);
      std::swap(dcurrent, dnext);
    }
    wait(transfer);
    std::swap(current, next);
  }
  if (later) add_block(*later, {{}, k, v});
  backend_->copy(dq.flatten_first(), sum.flatten_first());
  wait(gradients);
  add_remote(dk, dcurrent.k, dpartial.k);
  add_remote(dv, dcurrent.v, dpartial.v);
}

}  // namespace kintsugi
