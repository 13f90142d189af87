#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace kintsugi {

// The tensors in a retention workspace. Each backend uses those that it needs.
struct RetentionWorkspace {
  RetentionWorkspace() = default;
  RetentionWorkspace(const Tensor& memory, DType dtype, const RetentionSizes& sizes, bool backward);

  // In accumulator precision: the powers of each decay, and scale / norm of each position.
  Tensor powers;  // (heads, length + 1)
  Tensor rows;    // (heads, length)
  // In the run's precision: scaled copies, the states between chunks, the scores inside chunks.
  Tensor keys, queries;    // (heads, batch, length, k_dim)
  Tensor states, dstates;  // (heads, batch x chunks, k_dim, v_dim)
  Tensor scores, dscores;  // (heads, batch x chunks, chunk, chunk)
  std::size_t bytes = 0;
};

// The sizes of a call with keys or queries x (batch, length, heads, k_dim) and values y (batch,
// length, heads, v_dim).
RetentionSizes retention_sizes(const Tensor& x, const Tensor& y, const RetentionOptions& options);

}  // namespace kintsugi
