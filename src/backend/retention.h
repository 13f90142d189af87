#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace kintsugi {

// The parts of a workspace. Backends use those that they need.
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
