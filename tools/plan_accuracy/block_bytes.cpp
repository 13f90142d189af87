#include "plan_accuracy/block_bytes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/spec.h"

namespace kintsugi {

BlockShape block_shape(const ModelConfig& c) {
  // A gated MLP has twice as many outputs before the activation.
  ModelConfig one = c;
  one.layers = 1;
  ModelSpec model = model_spec(one);
  bool gated = false;
  for (const LinearUse& use : model.layers.front().linears())
    if (use.site == "mlp.up")
      gated = std::accumulate(use.linear->outputs.begin(), use.linear->outputs.end(),
                              std::int64_t{0}) > c.ffn_size;
  return {.hidden = static_cast<double>(c.hidden_size),
          .ffn = static_cast<double>(c.ffn_size),
          .heads = static_cast<double>(c.heads),
          .query = static_cast<double>(c.heads * c.head_dim),
          .qkv = static_cast<double>(c.qkv_rows()),
          .gated = gated};
}

double attention_bytes(const BlockShape& s, const BlockOptions& r) {
  // Block input, norm output and one mask.
  const double outside = 4 * s.hidden + (r.dropout ? s.hidden : 0);
  const double projections = 2 * s.qkv + 2 * s.query;
  // Fused: a log-sum-exp of four bytes. Otherwise softmax, dropout mask and dropout result.
  const double core = r.fused_attention ? 4 * s.heads + (r.copies_output ? 2 * s.query : 0)
                                        : (r.dropout ? 5 : 2) * s.heads * r.length;
  return outside / r.rows + (projections + core) / r.tp;
}

double feed_forward_bytes(const BlockShape& s, const BlockOptions& r) {
  const double outside = 4 * s.hidden + (r.dropout ? s.hidden : 0);
  return outside / r.rows + (s.gated ? 6 : 4) * s.ffn / r.tp;
}

double block_bytes(const BlockShape& shape, const BlockOptions& options) {
  return attention_bytes(shape, options) + feed_forward_bytes(shape, options);
}

double chunks_in_flight(const FlightShape& f) {
  const int behind = f.stages - 1 - f.stage;
  if (f.chunks == 1) return std::min<double>(behind + 1, f.micro_batches);
  // A chunk processes micro-batches in groups of `stages`, or of the next larger size that leaves
  // no group shorter than `stages`.
  double group = f.stages;
  while (group < f.micro_batches && std::fmod(f.micro_batches, group) != 0 &&
         std::fmod(f.micro_batches, group) < f.stages)
    group += 1;
  return std::min(2.0 * behind + (f.chunks - 1) * group + 1, f.micro_batches * f.chunks);
}

}  // namespace kintsugi
