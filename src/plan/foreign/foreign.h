#pragma once

#include "plan/machines/software.h"
#include "plan/search/job.h"

namespace kintsugi {

// Other training programs, as far as published measurements need them.
// DeepSpeed before 2023 kept all gradients of a rank even where the optimizer was cut.
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
