#include "plan/foreign/foreign.h"

namespace kintsugi {

// Megatron with sequence parallelism: of a layer's ten collectives, two all-gathers of inputs and
// two reduce-scatters of gradients in the backward overlap with matmuls.
constexpr double kHiddenCollectives = 0.4;
// Transformer Engine's matmuls of experts on four streams: 554 TFLOP/s on an H100 for 16 x 2,048
// rows, 2048 -> 768 (TransformerEngine issue 2045), where one matmul is predicted at 659.
constexpr double kStreamedExperts = 0.84;

Software software_of(System system) {
  switch (system) {
    case System::Megatron2021:
      return {.fused_attention = false,
              .host_us = 8,
              .elementwise = 1.3,
              .overlaps_tensor = false,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .pipeline_stops = 1,
              .scattered_pipeline = true,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 30};
    case System::Megatron2022:  // selective recomputation, sequence parallelism
      return {.fused_attention = false,
              .host_us = 8,
              .elementwise = 1.2,
              .overlaps_tensor = true,
              .hides_tensor = kHiddenCollectives,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .scattered_pipeline = true,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 30};
    case System::MegatronDeepSpeed:
    case System::MegatronDeepSpeed2021:
      return {.fused_attention = false,
              .host_us = 10,
              .elementwise = 1.3,
              .overlaps_tensor = false,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .pipeline_stops = 1,
              .scattered_pipeline = true,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 50};
    case System::DeepSpeedZero3:  // one collective per matrix, no prefetch
      return {.fused_attention = false,
              .host_us = 10,
              .elementwise = 1.3,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .scattered_pipeline = true,
              .layer_calls = 4,
              .gradient_wire = 2,
              .communication = 3,
              .step_ms = 50};
    case System::MegatronCore:
      return {.grouped_speed = kStreamedExperts,
              .host_us = 8,
              .elementwise = 1.2,
              .hides_tensor = kHiddenCollectives,
              .overlaps_data = 0.8,
              .overlaps_gather = 0.8,
              .scattered_pipeline = true,
              .communication = 1.2,
              .step_ms = 100};
    case System::Nanotron:
      // Every collective waits for the slowest host of its group, which is slower if the hosts also
      // handle pipeline messages. Sends and receives are sequential.
      return {.host_us = 14,
              .collective_host_us = 350,
              .pipeline_host_us = 240,
              .elementwise = 5,
              .accumulation_bytes = 10,
              .overlaps_tensor = false,
              .hides_tensor = 0.5,
              .overlaps_data = 1,
              .overlaps_sharded = 0.3,
              .overlaps_gather = 0,
              .pipeline_stops = 2,
              .scattered_pipeline = true,
              .communication = 1.3,
              .step_ms = 45};
    case System::Fsdp:
      return {.attention_speed = 0.85,
              .host_us = 12,
              .elementwise = 1.9,
              .overlaps_data = 0.9,
              .overlaps_gather = 0.9,
              .scattered_pipeline = true,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 20};
    case System::Torchtitan:
      return {.grouped_speed = kStreamedExperts,
              .host_us = 10,
              .elementwise = 3,
              .overlaps_data = 0.9,
              .overlaps_gather = 0.9,
              .scattered_pipeline = true,
              .communication = 1.2,
              .step_ms = 15};
  }
  return {};
}

}  // namespace kintsugi
