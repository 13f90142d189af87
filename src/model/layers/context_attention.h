#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "comm/communicator.h"

namespace kintsugi {

struct ContextAttentionSizes {
  std::int64_t sequences = 0;  // maximum per micro-batch
  std::int64_t length = 0;     // local tokens per sequence: ContextShard::local_length()
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;   // of queries and keys
  std::int64_t value_dim = 0;  // of values and outputs
};

// Causal attention over sequences that are sharded by ContextShard. All layers of a stage share
// one.
//
// Shapes: q and its gradient (sequences, length, heads, head_dim), k and its (sequences, length,
// kv_heads, head_dim); v and out with value_dim; lse (sequences, heads, length), whose meaning is
// private to the two operations. document_start is that of MicroBatch; empty: every sequence is one
// document. window: as in AttentionOptions.
class ContextAttention {
 public:
  virtual ~ContextAttention() = default;
  virtual void forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, double scale,
                       Tensor document_start, std::int64_t window) const = 0;
  virtual void backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                        Tensor q, Tensor k, Tensor v, double scale, Tensor document_start,
                        std::int64_t window) const = 0;
};

}  // namespace kintsugi
