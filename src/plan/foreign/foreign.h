#pragma once

#include "plan/machines/software.h"
#include "plan/search/job.h"

namespace kintsugi {

// Other training programs with published measurements. DeepSpeed before 2023 did not shard the
// gradients with ZeRO 1.
enum class System {
  Megatron2021,
  Megatron2022,
  MegatronDeepSpeed,
  MegatronDeepSpeed2021,
  DeepSpeedZero3,
  MegatronCore,
  Nanotron,
  Fsdp,
  Torchtitan
};

Software software_of(System system);

}  // namespace kintsugi
