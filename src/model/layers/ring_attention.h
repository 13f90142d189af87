#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/layers/context_attention.h"

namespace kintsugi {

// Every rank sends keys and values to the next rank of the ring while it computes on those that it
// has. In the backward, the gradients of keys and values follow them around the ring until they are
// back on their own rank.
class RingAttention final : public ContextAttention {
 public:
  // Allocates all memory. alibi_slopes (heads), fp32; empty: none.
  RingAttention(Backend& backend, Arena& arena, Communicator& group,
                const ContextAttentionSizes& sizes, DType dtype, bool training,
                Tensor alibi_slopes = {});

  // first_keys (ranks * sequences, length), int32, from first_visible_keys().
  void forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, double scale,
               Tensor first_keys, std::int64_t window) const override;
  void backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                Tensor k, Tensor v, double scale, Tensor first_keys,
                std::int64_t window) const override;

 private:
  // Keys and values (or their gradients) of all sequences, sent as one message.
  struct Pair {
    Tensor both;  // contiguous: k, then v
    Tensor k, v;  // (sequences, length, kv_heads, head_dim or value_dim)
  };
  // Local queries and the keys of one rank that they see.
  struct Block {
    std::int64_t first_query = 0, queries = 0, first_key = 0, keys = 0;
    AttentionOptions options;
    bool any() const { return sees_anything(options, queries, keys); }
    Tensor of(const Tensor& x) const { return x.part(1, first_query, queries); }
    Tensor of_lse(const Tensor& x) const { return x.part(2, first_query, queries); }
    Tensor with(const Tensor& x) const { return x.part(1, first_key, keys); }
  };
  struct Transfer {
    Communicator::Work sent, received;
  };

  int source(int step) const { return (group_->rank() - step + group_->size()) % group_->size(); }
  TokenPositions positions(int rank) const;
  // Whether attention is by chunk. Libraries have windows and ALiBi at consecutive positions only.
  bool by_chunk(const Tensor& first_keys, std::int64_t window) const {
    return (window > 0 || slopes_) && !first_keys;
  }
  // Of the keys of `source`, by chunk or all at once; without blocks in which nothing is seen.
  std::vector<Block> blocks(int source, std::int64_t sequences, double scale,
                            const Tensor& first_keys, std::int64_t window) const;
  Block whole_block(int source, std::int64_t sequences, const AttentionOptions& options,
                    const Tensor& first_keys) const;
  // The most blocks that a query is in.
  int most_blocks(const Tensor& first_keys, std::int64_t window) const;
  Pair pair(const Tensor& buffer, std::int64_t sequences) const;
  Pair pack(const Tensor& k, const Tensor& v) const;
  void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
             const Tensor& first_keys) const;

  // Sends `current` to the next rank and receives `next` from the previous one.
  Transfer send_to_next(const Pair& current, const Pair& next) const;
  void wait(const Transfer& transfer) const;
  // The log-sum-exp of a block's queries, contiguous: after copy_halves().
  Tensor contiguous_lse(const Tensor& lse, const Block& block) const;
  void copy_halves(const Tensor& lse) const;
  // Writes the gradients of a block's keys, and returns that of its queries.
  Tensor backward_of(const Block& block, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                     const Tensor& out, const Tensor& lse, const Tensor& q, const Pair& keys) const;
  // sum += partial, which is in the activations' or in accumulator precision.
  void add_to(const Tensor& sum, const Tensor& partial) const;
  // gradient += `others`, the sum of the other ranks' contributions. `buffer` is scratch.
  void add_remote(const Tensor& gradient, const Tensor& others, const Tensor& buffer) const;

  Backend* backend_;
  Communicator* group_;
  ContextAttentionSizes sizes_;
  DType dtype_;
  Tensor slopes_;
  std::array<Tensor, 2> kv_;       // current and next keys and values
  Tensor partial_, partial_lse_;   // out or dq of one step
  Tensor sum_;                     // out or dq summed over steps, in accumulator precision
  Tensor dkv_partial_;             // of one step; training only
  std::array<Tensor, 2> dkv_sum_;  // current and next sums; training only
};

}  // namespace kintsugi
