#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace kintsugi {

// Tokens per chunk where the options name none: products of this size fill a GPU's matrix units,
// and cost no more than those with the states.
inline constexpr std::int64_t kRetentionChunk = 256;

// What a call of the retention operations works on.
struct RetentionSizes {
  std::int64_t batch = 0, length = 0, heads = 0, k_dim = 0, v_dim = 0;
  std::int64_t chunk = 0;  // 0: kRetentionChunk

  std::int64_t chunk_tokens() const;  // at most the length
  std::int64_t chunks() const;        // of a sequence; the last may be shorter
};

// The workspace of any of the operations; the backward needs the most.
std::size_t retention_workspace_bytes(DType dtype, const RetentionSizes& sizes, bool backward);

// Its parts. Backends use those that they need.
struct RetentionWorkspace {
  RetentionWorkspace() = default;
  RetentionWorkspace(const Tensor& memory, DType dtype, const RetentionSizes& sizes, bool backward);

  // In accumulator precision: powers of each decay, and scale / norm of each position.
  Tensor powers;  // (heads, length + 1)
  Tensor rows;    // (heads, length)
  // Scaled copies, the states between chunks and the scores inside them, in the run's precision.
  Tensor keys, queries;    // (heads, batch, length, k_dim)
  Tensor states, dstates;  // (heads, batch x chunks, k_dim, v_dim)
  Tensor scores, dscores;  // (heads, batch x chunks, chunk, chunk)
  std::size_t bytes = 0;
};

// x (batch, length, heads, k_dim) as keys or queries, y (batch, length, heads, v_dim) as values;
// both checked, with the options.
RetentionSizes retention_sizes(const Tensor& x, const Tensor& y, const RetentionOptions& options);
// A state of these sizes in accumulator precision; with `optional` it may be empty.
void check_retention_state(const Tensor& state, DType dtype, const RetentionSizes& sizes,
                           bool optional);

}  // namespace kintsugi
