#pragma once

#include <string>

namespace kintsugi {

// How a training program uses its device, as far as it differs from this engine: what is needed to
// judge measurements of others by the same model. The defaults are this engine.
struct Software {
  std::string name = "kintsugi";
  bool fused_attention = true;     // false: scores are written to memory
  double products = 1;             // speed of products of matrices, in the machine's
  double attention = 1;            // of fused attention, likewise
  double host_us = 2;              // to issue one operation: shorter kernels wait for the host
  double collective_host_us = 5;   // to issue one collective
  double pipeline_host_us = 0;     // more for each tensor rank, in a pipeline over nodes
  double elementwise = 1;          // bytes that memory-bound kernels move, in this engine's
  double gradient_passes = 0;      // bytes per parameter that adding up gradients moves, beside the
                                   // products, per micro-batch
  bool fp8 = false;                // products in fp8, with conversions around them
  bool overlaps_tensor = true;     // sums over tensor ranks behind products of weights
  double hides_tensor = 0;         // share of gathers and scatters over tensor ranks of a node that
                                   // runs beside the products, as far as these last
  double overlaps_data = 0.8;      // share of a backward that can hide sums over data ranks
  double overlaps_sharded = -1;    // the same where these share the optimizer; -1: no less
  double overlaps_gather = 0.8;    // share of a forward that can hide the gathering of weights
  int pipeline_stops = 0;          // messages that a middle stage waits for, one after the other,
                                   // in a pass; 0: they hide behind the computation
  bool scattered_pipeline = true;  // messages are cut among tensor ranks where the stream is whole
  int layer_calls = 1;             // collectives in which ZeRO 2 and 3 move one layer
  double gradient_wire = 0;        // bytes per gradient in sums; 0: as this engine does
  double communication = 1.2;      // how much slower collectives run beside computation
  double step_ms = 1;              // per step whatever the model: data, logging
};

}  // namespace kintsugi
