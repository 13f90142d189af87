#pragma once

#include <string>

namespace kintsugi {

// How a training program uses its device, as far as it differs from this engine: what is needed to
// judge measurements of others by the same model. The defaults are this engine.
struct Software {
  std::string name = "kintsugi";
  bool fused_attention = true;     // false: scores are written to memory
  double attention = 1;            // speed of fused attention, in the machine's
  double host_us = 2;              // to issue one operation: shorter kernels wait for the host
  double collective_host_us = 5;   // to issue one collective
  bool host_grows = false;         // in a pipeline over nodes, with the number of tensor ranks
  double elementwise = 1;          // bytes that memory-bound kernels move, in this engine's
  double gradient_passes = 0;      // bytes per parameter that adding up gradients moves, beside the
                                   // products, per micro-batch
  bool fp8 = false;                // products in fp8, with conversions around them
  bool overlaps_tensor = true;     // sums over tensor ranks behind products of weights
  double overlaps_data = 0.8;      // share of a backward that can hide sums over data ranks
  double overlaps_gather = 0.8;    // share of a forward that can hide the gathering of weights
  bool blocking_pipeline = false;  // sends and receives stop the computation
  bool scattered_pipeline = true;  // messages are cut among tensor ranks where the stream is whole
  double gradient_wire = 0;        // bytes per gradient in sums; 0: as this engine does
  double communication = 1.2;      // how much slower collectives run beside computation
  double step_ms = 1;              // per step whatever the model: data, logging
};

}  // namespace kintsugi
