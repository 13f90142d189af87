#pragma once

#include "model/config.h"

namespace kintsugi {

// Activation bytes that one token keeps for the backward in one transformer layer on one tensor
// rank: arXiv 2205.05198, extended to grouped queries and gated MLPs, two bytes per activation.
struct BlockShape {
  double hidden = 0, ffn = 0;
  double heads = 0, query = 0, qkv = 0;  // heads, and widths of the projections
  bool gated = false;
};
BlockShape block_shape(const ModelConfig& config);

struct BlockOptions {
  double tp = 1;
  double rows = 1;    // sequence-parallel ranks that split the tokens outside of the tp regions
  double length = 0;  // keys per query, for attention that is not fused
  bool fused_attention = true;
  bool dropout = true;         // masks of one byte
  bool copies_output = false;  // attention output is transposed for the next matmul
};

// Norm, projections, attention and dropout mask of the residual branch.
double attention_bytes(const BlockShape& shape, const BlockOptions& options);
// Norm, MLP matmul inputs and activations, and dropout mask.
double feed_forward_bytes(const BlockShape& shape, const BlockOptions& options);
double block_bytes(const BlockShape& shape, const BlockOptions& options);

// How many chunk forwards a stage holds before the first backward, in 1F1B and interleaved.
struct FlightShape {
  int stages = 1, stage = 0, chunks = 1;
  double micro_batches = 1;
};
double chunks_in_flight(const FlightShape& shape);

}  // namespace kintsugi
