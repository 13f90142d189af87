#pragma once

#include "backend/cuda/cuda_common.h"
#include "backend/retention.h"

namespace kintsugi::cuda {

// What is between the matmuls of retention.cpp. With the decay g of a head and r_i = scale /
// norm_i: powers (heads, length + 1) = g^n, rows (heads, length) = r_i
void retention_tables(const Context& context, const RetentionWorkspace& parts,
                      const RetentionOptions& options);
// to = from times a factor of its token, (batch, length, heads, dim) each; to may be from.
// FromState: r_i g^(i+1), ToState: g^(C-1-i), for token i of a chunk of C. Either may be empty.
enum class RetentionFactor { FromState, ToState };
struct ScaledRows {
  Tensor to, from;
  RetentionFactor factor;
};
void scale_rows(const Context& context, const RetentionWorkspace& parts, const RetentionSizes& n,
                ScaledRows first, ScaledRows second);
// slots (heads, batch x chunks, k_dim, v_dim): from the sums of the chunks to what is summed before
// each, from `given` (batch, heads, k_dim, v_dim) on; reverse: from the last chunk on.
void scan_chunks(const Context& context, const Tensor& slots, const Tensor& given,
                 const RetentionWorkspace& parts, const RetentionSizes& n, bool reverse);
// scores and dscores (may be empty), (heads, batch x chunks, chunk, chunk), times r_i g^(i-j) for
// j <= i and 0 elsewhere
void decay_scores(const Context& context, const Tensor& scores, const Tensor& dscores,
                  const RetentionWorkspace& parts, const RetentionSizes& n);
// The forward for one token.
void retention_token(const Context& context, const Tensor& out, const Tensor& q, const Tensor& k,
                     const Tensor& v, const Tensor& state, const RetentionOptions& options);
// state = g^length state [+ k^T v, for one token]
void decay_state(const Context& context, const Tensor& state, std::int64_t length, const Tensor& k,
                 const Tensor& v, const RetentionOptions& options);

}  // namespace kintsugi::cuda
