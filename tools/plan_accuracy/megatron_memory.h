#pragma once

#include "plan_accuracy/megatron_arguments.h"

namespace kintsugi {

// The peak of torch's allocations on Megatron's last rank.
struct MegatronMemory {
  double states = 0;       // weights, gradients, optimizer
  double activations = 0;  // of chunks between forward and backward
  double loss = 0;         // logits, or the recomputed layer
  double ends = 0;         // final norm, masks, pipeline messages
  double libraries = 0;
  double total() const { return states + activations + loss + ends + libraries; }
};
MegatronMemory megatron_memory(const MegatronRun& run);

}  // namespace kintsugi
