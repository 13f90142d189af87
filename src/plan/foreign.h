#pragma once

#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/software.h"

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

// Bytes that torch has allocated at its peak, stage by stage, by the formulas of planning.md §3 for
// that program. gradient_bytes: of one gradient; 0: 4.
struct ForeignMemory {
  double states = 0;       // weights, gradients, optimizer
  double activations = 0;  // of micro-batches between forward and backward
  double work = 0;         // the layer at work, logits, buckets of gradients
  double total() const { return states + activations + work; }
};
std::vector<ForeignMemory> foreign_memory(System system, const PlanJob& job,
                                          const PlanLayout& layout, double gradient_bytes);

}  // namespace kintsugi
