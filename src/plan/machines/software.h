#pragma once

namespace kintsugi {

// How a training program uses its device. The defaults are this engine, each with where it comes
// from: by construction (the engine's code or its trace says so), measured or fitted (to what), or
// assumed (no run has shown it yet). Descriptions of other programs are not part of this program:
// tools/plan_accuracy/programs.
struct Software {
  // By construction: attention is one kernel. false: its scores are written to memory.
  bool fused_attention = true;
  // Relative to the machine's gemm_efficiency and attention_efficiency; by definition.
  double matmul_speed = 1;
  double attention_speed = 1;
  // Matmuls of experts relative to one of the same rows and tiles. Fitted to 8 layers of Qwen3-30B
  // on one H200, 327 ms per step (bench/README.md).
  double grouped_speed = 0.6;
  // To launch one operation and one collective; shorter kernels wait for the host. Assumed.
  double host_us = 2;
  double collective_host_us = 5;
  // From the end of an operation until the host that waits for it launches the next one. Assumed.
  double host_wait_us = 10;
  // More for a collective, per tensor rank, in a pipeline across nodes. Assumed: none.
  double pipeline_host_us = 0;
  // Bytes moved by memory-bound kernels, relative to the trace of this engine; by definition.
  double elementwise = 1;
  // Bytes per parameter and micro-batch that gradient accumulation moves outside of the matmuls. By
  // construction: matmuls accumulate.
  double accumulation_bytes = 0;
  // Another program's matmuls are in fp8, with conversions around them; this engine's trace has its
  // own (train.fp8).
  bool fp8 = false;
  // tp all-reduces overlap with weight-gradient matmuls. By construction.
  bool overlaps_tensor = true;
  // Fraction of tp all-gathers and reduce-scatters within a node that overlaps with matmuls, at
  // most the matmul time. By construction.
  double hides_tensor = 0;
  // Fraction of a backward that can hide dp all-reduces, with a sharded optimizer (-1: the same),
  // and of a forward that can hide all-gathers of weights. Assumed.
  double overlaps_data = 0.8;
  double overlaps_sharded = -1;
  double overlaps_gather = 0.8;
  // Messages that a middle stage waits for, one after the other, per forward or backward. By
  // construction: messages overlap with compute.
  int pipeline_stops = 0;
  // Without sequence parallelism each tensor rank sends 1/tp of a pipeline message.
  bool scattered_pipeline = false;
  // Added to each message between stages in a job of several nodes, and to the first one of a step
  // in each direction. Assumed: none.
  double message_ms = 0;
  double first_message_ms = 0;
  // Bytes of the all-to-all between experts relative to this engine, and the fraction of it that
  // overlaps with another micro-batch. By construction.
  double all_to_all = 1;
  double hides_experts = 0;
  int layer_calls = 1;       // collectives per layer in ZeRO 2 and 3; by construction
  double gradient_wire = 0;  // bytes per gradient in collectives; 0: as this engine
  // Slowdown of collectives that overlap with compute. Assumed; vTrain measured about 1.3 for NCCL
  // on A100.
  double communication = 1.2;
  // Per step, independent of the model: data, logging. Fitted to five models on one H200
  // (bench/published/accuracy.md).
  double step_ms = 1;
};

}  // namespace kintsugi
