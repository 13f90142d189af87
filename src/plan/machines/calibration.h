#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "plan/costs/costs.h"

namespace kintsugi {

// One operation and how long this device takes for it.
struct MeasuredOperation {
  TracedOperation operation = {};
  double seconds = 0;
};

// Products, attention, copies and an empty kernel, `effort` seconds for each. Memory is taken from
// the backend and given back.
std::vector<MeasuredOperation> measure_operations(Backend& backend, DType precision,
                                                  std::int64_t largest, double effort);

// The machine with the efficiencies that these measurements show: medians over the shapes. Where
// they beat the specification, the specification follows.
Machine calibrated(Machine machine, const std::vector<MeasuredOperation>& measured);

// Shape by shape: measured, as the model has it now, and the difference.
std::string calibration_table(const Machine& machine,
                              const std::vector<MeasuredOperation>& measured);

}  // namespace kintsugi
