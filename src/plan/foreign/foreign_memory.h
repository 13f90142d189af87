#pragma once

#include <string>
#include <vector>

#include "plan/foreign/foreign.h"
#include "plan/machines/machine.h"

namespace kintsugi {

// Bytes on one stage of a foreign program by closed forms.
struct ForeignMemory {
  double states = 0;       // weights, gradients, optimizer
  double activations = 0;  // of micro-batches between forward and backward
  double work = 0;  // the layer at work or the logits, gathered weights, buckets of gradients
  double step = 0;  // what the optimizer's step takes beside the states, after the backward
  // What torch has allocated at its peak while micro-batches run.
  double total() const { return states + activations + work; }
};

// What a row says about a program beside its name.
struct ForeignRun {
  double gradient_bytes = 0;   // of one gradient that is summed; 0: 4
  bool compiled_loss = false;  // the loss is one kernel that keeps no copies of the logits
  bool gathers_again = true;   // nanotron: inputs of products, for the backward
  bool by_operation = false;   // torchtitan recomputes every second product, not layer
};
// Stage by stage, by the formulas of planning.md §3 for that program.
std::vector<ForeignMemory> foreign_memory(System system, const PlanJob& job, const Layout& layout,
                                          const ForeignRun& run = {});

// What that program keeps of the device: the allocator's holes, NCCL's buffers and the context
// included. `pressed`: where the device is full and torch gives back what it only keeps.
double device_bytes(System system, const ForeignMemory& memory, const Layout& layout,
                    const Machine& machine, bool pressed);

// Why a program does not even start a layout; empty where it does.
std::string refusal(System system, const PlanJob& job, const Layout& layout, double micro_batches);
// Layers of each stage, -1 where a stage gets nothing at all, and which of them has the head.
struct NanotronSplit {
  std::vector<int> layers = {};
  int head = 0;
};
NanotronSplit nanotron_split(const ModelConfig& config, int stages);

}  // namespace kintsugi
