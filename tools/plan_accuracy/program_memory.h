#pragma once

#include <string>
#include <vector>

#include "plan/search/job.h"
#include "plan_accuracy/program.h"

namespace kintsugi {

// Bytes on one stage of another program, from closed forms.
struct ProgramMemory {
  double states = 0;       // weights, gradients, optimizer
  double activations = 0;  // of micro-batches between forward and backward
  double work = 0;         // current layer or logits, gathered weights, gradient buckets
  double step = 0;         // temporary memory of the optimizer step, after the backward
  // The peak of torch's allocations during forward and backward.
  double total() const { return states + activations + work; }
};

// What a program and the options of a run decide beside the layout.
struct MemoryRun {
  bool fused_attention = true;
  double gradient_bytes = 0;   // of one accumulated gradient; 0: 4
  bool compiled_loss = false;  // the loss is one kernel that keeps no copies of the logits
  bool gathers_again = true;   // nanotron gathers matmul inputs again in the backward
  bool by_operation = false;   // torchtitan recomputes every second matmul, not every second layer
};
// The memory of each stage, by the formulas of planning.md §3 for that program.
std::vector<ProgramMemory> program_memory(MemoryForms forms, const PlanJob& job,
                                          const Layout& layout, const MemoryRun& run = {});

// Device memory used by that program, including fragmentation, NCCL buffers and the context.
// `pressed`: the device is full and torch frees its cached blocks.
double device_bytes(MemoryForms forms, const ProgramMemory& memory, const Layout& layout,
                    const Machine& machine, bool pressed);

// Why a program refuses a layout; empty if it does not.
std::string refusal(MemoryForms forms, const PlanJob& job, const Layout& layout,
                    double micro_batches);
// The layers of each stage (-1 for an empty stage) and the stage with the head.
struct NanotronSplit {
  std::vector<int> layers = {};
  int head = 0;
};
NanotronSplit nanotron_split(const ModelConfig& config, int stages);

}  // namespace kintsugi
