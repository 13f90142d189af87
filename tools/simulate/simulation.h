#pragma once

#include <map>
#include <string>
#include <vector>

#include "simulate/network.h"

namespace kintsugi {

// Parts of a step, in seconds.
struct StepParts {
  double compute_s = 0;                            // of the slowest stage
  double pipeline_s = 0;                           // bubble, and messages that a stage waits for
  double tensor_s = 0, experts_s = 0, data_s = 0;  // communication that is waited for
  double update_s = 0, other_s = 0;

  double step_s() const {
    return compute_s + pipeline_s + tensor_s + experts_s + data_s + update_s + other_s;
  }
};

struct SimulatedStep {
  StepParts simulated = {}, priced = {};
  std::vector<double> call_s = {};  // of each call of the replay, alone
  std::string network = {};         // in words
  std::int64_t flows = 0;
};

// Simulates the step. To be called once per process.
SimulatedStep simulate(const StepReplay& replay, NetworkKind kind);

}  // namespace kintsugi
