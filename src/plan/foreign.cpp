#include "plan/foreign.h"

namespace kintsugi {

Software software_of(System system) {
  switch (system) {
    case System::Megatron2021:
      return {.name = "Megatron-LM 2021",
              .fused_attention = false,
              .host_us = 8,
              .elementwise = 1.3,
              .overlaps_tensor = false,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .blocking_pipeline = true,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 30};
    case System::MegatronDeepSpeed:
    case System::MegatronDeepSpeed2021:
      return {.name = "Megatron-DeepSpeed",
              .fused_attention = false,
              .host_us = 10,
              .elementwise = 1.3,
              .overlaps_tensor = false,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .blocking_pipeline = true,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 50};
    case System::DeepSpeedZero3:
      return {.name = "DeepSpeed ZeRO-3 2021",
              .fused_attention = false,
              .host_us = 10,
              .elementwise = 1.3,
              .overlaps_data = 0.5,
              .overlaps_gather = 0.5,
              .gradient_wire = 2,
              .communication = 6,
              .step_ms = 50};
    case System::MegatronCore:
      return {.name = "Megatron Core",
              .host_us = 8,
              .elementwise = 1.2,
              .overlaps_data = 0.8,
              .overlaps_gather = 0.8,
              .communication = 1.2,
              .step_ms = 10};
    case System::Nanotron:
      return {.name = "nanotron",
              .host_us = 20,
              .collective_host_us = 350,
              .host_grows = true,
              .elementwise = 4,
              .gradient_passes = 10,
              .overlaps_tensor = false,
              .overlaps_data = 0.5,
              .overlaps_gather = 0,
              .blocking_pipeline = true,
              .communication = 1.3,
              .step_ms = 60};
    case System::Fsdp:
      return {.name = "FSDP",
              .attention = 0.85,
              .host_us = 12,
              .elementwise = 1.9,
              .overlaps_data = 0.9,
              .overlaps_gather = 0.9,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 20};
    case System::Torchtitan:
      return {.name = "torchtitan",
              .attention = 0.6,
              .host_us = 10,
              .elementwise = 2.2,
              .overlaps_data = 0.9,
              .overlaps_gather = 0.9,
              .communication = 1.2,
              .step_ms = 15};
  }
  return {};
}

}  // namespace kintsugi
