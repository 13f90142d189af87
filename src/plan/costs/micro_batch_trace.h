#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/operation_trace.h"
#include "model/model_layers.h"
#include "plan/search/job.h"
#include "tensor/arena.h"

namespace kintsugi {

using RegionBytes = std::array<std::int64_t, kRegions>;

RegionBytes bytes_by_region(const Arena& arena, Side side = Side::Device);
RegionBytes operator+(const RegionBytes& a, const RegionBytes& b);
RegionBytes operator-(const RegionBytes& a, const RegionBytes& b);
RegionBytes operator*(std::int64_t times, const RegionBytes& a);
std::int64_t total(const RegionBytes& bytes);

// Operations and memory of one micro-batch in one layer on one rank. Traced by running the engine's
// own layers on the sim backend.
struct BlockTrace {
  OperationTrace forward;
  OperationTrace first_forward;  // of a step, with fp8: it also quantizes the weights
  OperationTrace backward;       // including recomputation
  OperationTrace backward_input, backward_weight;
  RegionBytes stash = {};  // of one micro-batch, without the block's input
  RegionBytes kept = {};   // between backward_input and backward_weight
};
struct LayerTraces {
  BlockTrace plain;       // without recomputation
  BlockTrace recomputed;  // with the layout's recomputation
};
struct MicroBatchTrace {
  std::vector<LayerTraces> layers;  // by kind (ModelLayers)
  OperationTrace embedding_forward, embedding_backward;
  // The head processes equal chunks of tokens. Of a long micro-batch only some chunks are traced;
  // the cost is head + head_extra x (head - head_half).
  OperationTrace head, head_half;
  double head_extra = 0;

  std::int64_t boundary = 0;  // bytes of the residual stream, the input of a block
  RegionBytes scratch = {};   // shared by all chunks of a rank
  RegionBytes embedding_stash = {};
  RegionBytes head_memory = {};
  std::int64_t tokens = 0;  // of a micro-batch on this rank
};

// Depends only on tp, cp, context, ep, dispatch, sequence_parallel, micro_batch and recompute of
// the layout, and with fp8 on whether it has ZeRO 3.
MicroBatchTrace trace_micro_batch(const PlanJob& job, const ModelLayers& model,
                                  const Layout& layout);

}  // namespace kintsugi
