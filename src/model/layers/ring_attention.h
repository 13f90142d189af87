#pragma once

#include <array>
#include <cstdint>

#include "backend/backend.h"
#include "comm/communicator.h"

namespace kintsugi {

struct RingAttentionSizes {
  std::int64_t sequences = 0;  // at most, at a time
  std::int64_t length = 0;     // of a sequence, on this rank: ContextCut::local_length()
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};

// Causal attention of sequences that are cut among the ranks of a group as ContextCut says. Keys
// and values travel around the ring, from each rank to the next, while every rank computes on those
// that are with it; going back, their gradients travel behind them and come home. The layers of a
// stage share one.
//
// q, out and their gradients (sequences, length, heads, head_dim), k, v and theirs (…, kv_heads,
// head_dim): views of (tokens, heads, head_dim) split by sequence; lse (sequences, heads, length).
class RingAttention {
 public:
  // Takes all its memory here. With alibi_slopes (heads), fp32, or none.
  RingAttention(Backend& backend, Arena& arena, Communicator& group,
                const RingAttentionSizes& sizes, DType dtype, bool training,
                Tensor alibi_slopes = {});

  // first_keys (ranks * sequences, length), int32, as first_visible_keys() has them; none: every
  // sequence is one document. window: as in AttentionOptions.
  void forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, double scale,
               Tensor first_keys = {}, std::int64_t window = 0) const;
  void backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                Tensor k, Tensor v, double scale, Tensor first_keys = {},
                std::int64_t window = 0) const;

 private:
  // Keys and values, or their gradients, of all sequences, as one message.
  struct Pair {
    Tensor both;  // contiguous: k, then v
    Tensor k, v;  // (sequences, length, kv_heads, head_dim)
  };
  // What this rank's queries see of the keys of another: some of the queries, the first keys.
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
  // The first elements of a buffer as (sequences, tokens, heads, head_dim).
  Tensor rows(const Tensor& buffer, std::int64_t sequences, std::int64_t tokens,
              std::int64_t heads) const;
  Pair pack(const Tensor& k, const Tensor& v) const;
  void check(const Tensor& q, const Tensor& k, const Tensor& lse, const Tensor& first_keys) const;

  Transfer pass_on(const Pair& mine, const Pair& next) const;
  void wait(const Transfer& transfer) const;
  // sum += part, where part may be in the precision of activations.
  void add_to(const Tensor& sum, const Tensor& part) const;
  // gradient += what the other ranks found.
  void bring_home(const Tensor& gradient, const Tensor& others, const Tensor& part) const;

  Backend* backend_;
  Communicator* group_;
  RingAttentionSizes sizes_;
  DType dtype_;
  Tensor slopes_;
  std::array<Tensor, 2> kv_;  // those that are here and those that come
  Tensor part_, part_lse_;    // of one step: out or dq
  Tensor sum_;                // the same of all steps, in accumulator precision
  Tensor wide_;               // a part on its way into a sum
  Tensor dkv_part_;           // training only, from here on
  std::array<Tensor, 2> dkv_sum_;
};

}  // namespace kintsugi
