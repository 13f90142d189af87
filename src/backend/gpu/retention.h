#pragma once

#include "backend/gpu/common.h"
#include "backend/retention.h"

namespace kintsugi::gpu {

// The kernels between the matmuls of retention.cpp. g is the decay of a head, r_i = scale / norm_i.

// Fills the tables powers (heads, length + 1) = g^n and rows (heads, length) = r_i.
void retention_tables(const Context& context, const RetentionWorkspace& buffers,
                      const RetentionOptions& options);
// to = from * factor of the token; both (batch, length, heads, dim); to may be from. The factor of
// token i in a chunk of C tokens is r_i g^(i+1) (FromState) or g^(C-1-i) (ToState). `first` and
// `second` are two such operations; either may be empty.
enum class RetentionFactor { FromState, ToState };
struct ScaledRows {
  Tensor to, from;
  RetentionFactor factor;
};
void scale_rows(const Context& context, const RetentionWorkspace& buffers, const RetentionSizes& n,
                ScaledRows first, ScaledRows second);
// Replaces the sum of each chunk in slots (heads, batch x chunks, k_dim, v_dim) by the state before
// the chunk, starting from `given` (batch, heads, k_dim, v_dim). reverse: starts at the last chunk.
void scan_chunks(const Context& context, const Tensor& slots, const Tensor& given,
                 const RetentionWorkspace& buffers, const RetentionSizes& n, bool reverse);
// Multiplies scores and dscores (may be empty), both (heads, batch x chunks, chunk, chunk), by
// r_i g^(i-j) for j <= i and by 0 elsewhere.
void decay_scores(const Context& context, const Tensor& scores, const Tensor& dscores,
                  const RetentionWorkspace& buffers, const RetentionSizes& n);
// The forward of a single token.
void retention_token(const Context& context, const Tensor& out, const Tensor& q, const Tensor& k,
                     const Tensor& v, const Tensor& state, const RetentionOptions& options);
// state = g^length state [+ k^T v, for one token]
void decay_state(const Context& context, const Tensor& state, std::int64_t length, const Tensor& k,
                 const Tensor& v, const RetentionOptions& options);

}  // namespace kintsugi::gpu
