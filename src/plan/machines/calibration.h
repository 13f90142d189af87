#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/progress.h"
#include "plan/costs/costs.h"

namespace kintsugi {

// One operation and its measured time on this device.
struct MeasuredOperation {
  TracedOperation operation = {};
  double seconds = 0;
};

// Measures matmuls, attention, copies and the smallest kernel, `effort` seconds for each.
// `progress`: operations.
std::vector<MeasuredOperation> measure_operations(Backend& backend, DType precision,
                                                  std::int64_t largest, double effort,
                                                  const ProgressCall& progress = {});

// Sets the machine's efficiencies to the measured ones: medians over the shapes. A peak that the
// measurements exceed is raised.
Machine calibrated(Machine machine, const std::vector<MeasuredOperation>& measured);

// A table of measured time, modelled time and error per operation and shape.
std::string calibration_table(const Machine& machine,
                              const std::vector<MeasuredOperation>& measured);

}  // namespace kintsugi
