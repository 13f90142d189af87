#pragma once

namespace kintsugi {

// How a training program uses its device, as far as it differs from this engine. With it the same
// cost model predicts measurements of other programs. The defaults are this engine.
struct Software {
  bool fused_attention = true;  // false: attention scores are written to memory
  double matmul_speed = 1;      // relative to the machine's gemm_efficiency
  double attention_speed = 1;   // relative to the machine's attention_efficiency
  // Matmuls of experts relative to one of the same rows and tiles: with it, those of 8 layers of
  // Qwen3-30B take the measured 327 ms per step on an H200 (bench/README.md).
  double grouped_speed = 0.6;
  double host_us = 2;             // to launch one operation; shorter kernels wait for the host
  double collective_host_us = 5;  // to launch one collective
  double host_wait_us = 10;       // from the end of an operation until the host that waits for it
                                  // launches the next one
  double pipeline_host_us = 0;    // more per tensor rank, in a pipeline across nodes
  double elementwise = 1;         // bytes moved by memory-bound kernels, relative to this engine
  double accumulation_bytes = 0;  // bytes per parameter and micro-batch that gradient accumulation
                                  // moves outside of the matmuls
  bool fp8 = false;               // another program's matmuls are in fp8, with conversions around
                                  // them; this engine's trace has its own (train.fp8)
  bool overlaps_tensor = true;    // tp all-reduces overlap with weight-gradient matmuls
  double hides_tensor = 0;        // fraction of tp all-gathers and reduce-scatters within a node
                                  // that overlaps with matmuls, at most the matmul time
  double overlaps_data = 0.8;     // fraction of a backward that can hide dp all-reduces
  double overlaps_sharded = -1;   // the same with a sharded optimizer; -1: as overlaps_data
  double overlaps_gather = 0.8;   // fraction of a forward that can hide all-gathers of weights
  int pipeline_stops = 0;         // messages that a middle stage waits for, one after the other,
                                  // per forward or backward; 0: they overlap with compute
  bool scattered_pipeline = false;  // without sequence parallelism each tensor rank sends 1/tp of
                                    // a pipeline message
  double all_to_all = 1;       // bytes of the all-to-all between experts, relative to this engine
  double hides_experts = 0;    // fraction of it that overlaps with another micro-batch
  int layer_calls = 1;         // collectives per layer in ZeRO 2 and 3
  double gradient_wire = 0;    // bytes per gradient in collectives; 0: as this engine
  double communication = 1.2;  // slowdown of collectives that overlap with compute
  double step_ms = 1;          // per step, independent of the model: data, logging
};

}  // namespace kintsugi
