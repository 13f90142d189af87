#pragma once

#include <string>
#include <vector>

#include "plan/foreign/foreign.h"
#include "plan/machines/machine.h"

namespace kintsugi {

// Bytes on one stage of another program, from closed forms.
struct ForeignMemory {
  double states = 0;       // weights, gradients, optimizer
  double activations = 0;  // of micro-batches between forward and backward
  double work = 0;         // current layer or logits, gathered weights, gradient buckets
  double step = 0;         // temporary memory of the optimizer step, after the backward
  // The peak of torch's allocations during forward and backward.
  double total() const { return states + activations + work; }
};

// Options of a program that a row gives.
struct ForeignRun {
  double gradient_bytes = 0;   // of one accumulated gradient; 0: 4
  bool compiled_loss = false;  // the loss is one kernel that keeps no copies of the logits
  bool gathers_again = true;   // nanotron gathers matmul inputs again in the backward
  bool by_operation = false;   // torchtitan recomputes every second matmul, not every second layer
};
// The memory of each stage, by the formulas of planning.md §3 for that program.
std::vector<ForeignMemory> foreign_memory(System system, const PlanJob& job, const Layout& layout,
                                          const ForeignRun& run = {});

// Device memory used by that program, including fragmentation, NCCL buffers and the context.
// `pressed`: the device is full and torch frees its cached blocks.
double device_bytes(System system, const ForeignMemory& memory, const Layout& layout,
                    const Machine& machine, bool pressed);

// Why a program refuses a layout; empty if it does not.
std::string refusal(System system, const PlanJob& job, const Layout& layout, double micro_batches);
// The layers of each stage (-1 for an empty stage) and the stage with the head.
struct NanotronSplit {
  std::vector<int> layers = {};
  int head = 0;
};
NanotronSplit nanotron_split(const ModelConfig& config, int stages);

}  // namespace kintsugi
