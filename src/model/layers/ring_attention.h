#pragma once

#include <array>
#include <cstdint>

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
  // The local queries that see keys of another rank, and the number of that rank's keys (the first
  // ones) that they see.
  struct Visible {
    std::int64_t first_query = 0, queries = 0, keys = 0;
    AttentionOptions options;
    bool any() const { return sees_anything(options, queries, keys); }
    Tensor of(const Tensor& x) const { return x.part(1, first_query, queries); }
    Tensor of_lse(const Tensor& x) const { return x.part(2, first_query, queries); }
    Tensor with(const Tensor& x) const { return x.part(1, 0, keys); }
  };
  struct Transfer {
    Communicator::Work sent, received;
  };

  int source(int step) const { return (group_->rank() - step + group_->size()) % group_->size(); }
  TokenPositions positions(int rank) const;
  Visible visible(int source, std::int64_t sequences, double scale, const Tensor& first_keys,
                  std::int64_t window) const;
  Pair pair(const Tensor& buffer, std::int64_t sequences) const;
  Pair pack(const Tensor& k, const Tensor& v) const;
  void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
             const Tensor& first_keys) const;

  // Sends `current` to the next rank and receives `next` from the previous one.
  Transfer send_to_next(const Pair& current, const Pair& next) const;
  void wait(const Transfer& transfer) const;
  // The number of other ranks whose keys the local queries see.
  int sources(std::int64_t window) const;
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
