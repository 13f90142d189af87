#pragma once

#include "model/config.h"

namespace kintsugi {

// Bytes that one token leaves behind for the backward in one transformer layer on one tensor rank:
// arXiv 2205.05198 with grouped queries and gated feed-forwards, activations of two bytes.
struct BlockShape {
  double hidden = 0, ffn = 0;
  double heads = 0, query = 0, qkv = 0;  // heads, and widths of the projections
  bool gated = false;
};
BlockShape block_shape(const ModelConfig& config);

struct BlockRun {
  double tp = 1;
  double rows = 1;    // ranks that share the tokens outside of tensor parallelism
  double length = 0;  // keys that a query sees, where scores are written
  bool fused_attention = true;
  bool dropout = true;         // masks of one byte
  bool copies_output = false;  // attention leaves its result in another order than the next product
};

// The norm in front, the projections, attention and the residual's mask.
double attention_bytes(const BlockShape& shape, const BlockRun& run);
// The same of a feed-forward: inputs of norm and products, with as many copies of its middle.
double feed_forward_bytes(const BlockShape& shape, const BlockRun& run);
double block_bytes(const BlockShape& shape, const BlockRun& run);

// How many forwards of a chunk a stage holds before the first backward, in 1F1B and interleaved.
struct FlightShape {
  int stages = 1, stage = 0, chunks = 1;
  double micro_batches = 1;
};
double chunks_in_flight(const FlightShape& shape);

}  // namespace kintsugi
