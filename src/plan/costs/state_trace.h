#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "plan/costs/pass_trace.h"

namespace kintsugi {

// Weights, gradients and optimizer of one rank, and what the end of a step does with them.
struct StateTrace {
  RegionBytes memory = {};
  double step_bytes = 0;  // moved by norm, clipping and update
  double step_kernels = 0;
  // Over which group which collectives run after the last micro-batch: calls and bytes.
  struct Traffic {
    double calls = 0, bytes = 0;
  };
  std::map<std::pair<std::string, TracedOperation::Transfer>, Traffic> traffic = {};
  double parameters = 0;       // held, or shared with the shard group
  double block_weights = 0;    // bytes of one layer's bucket in the run's precision
  double block_gradients = 0;  // bytes of it on the wire
};

// A rank's part of the model, as far as its state depends on it.
struct StatePart {
  int layers = 1;
  bool embedding = true, head = true;
  auto operator<=>(const StatePart&) const = default;
};

StateTrace trace_state(const PlanJob& job, const Layout& layout, const StatePart& part,
                       const Place& place = {});

}  // namespace kintsugi
