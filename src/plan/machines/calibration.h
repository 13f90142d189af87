#pragma once

#include <string>
#include <vector>

#include "core/trace.h"
#include "plan/costs/costs.h"
#include "plan/search/job.h"

namespace kintsugi {

// One operation with one shape in measured training steps.
struct MeasuredOperation {
  std::string name = {};                    // with its shape, as in profiles
  std::vector<TracedOperation> parts = {};  // as the planner counts it
  double calls = 0;                         // per step
  double seconds = 0;                       // of one call
  double share = 0;                         // of all calls in the step's time

  const TracedOperation& work() const { return parts.front(); }
};

// Training steps of a model, or of some of its layers, on one device with random tokens.
struct MeasuredTraining {
  std::string name = {};
  PlanJob job = {};
  std::int64_t micro_batch = 0;  // 0: all of a step
  double step_s = 0;             // without a profile
  double watts = 0;              // of the device meanwhile; 0: there is no meter
  std::vector<MeasuredOperation> operations = {};
};

// The operations of `steps` profiled steps, of which `counted` is one as the sim backend counts it.
// Their times are scaled so that they sum to `step_s`, because a profile slows steps down.
std::vector<MeasuredOperation> measured_operations(const std::vector<TraceSpan>& spans,
                                                   const OperationTrace& counted, int steps,
                                                   double step_s);

// Sets the machine's efficiencies, the speeds of operations that differ from them, launch_us and
// active_w to what was measured. A peak that the measurements exceed is raised. `shortest_s`: of
// the shortest kernel, with the gap to the next one; 0: not measured.
Machine calibrated(Machine machine, const std::vector<MeasuredTraining>& trained,
                   double shortest_s);

// How far the fitted model is from the operations of one kind and precision.
struct FitError {
  std::string kind = {};        // "matmul bf16"
  int operations = 0;           // with different shapes
  double share = 0;             // mean, of the steps
  double bias = 0;              // of their time: modelled / measured - 1
  double median = 0, most = 0;  // of |modelled / measured - 1|: the middle one, and 90 %
};
std::vector<FitError> fit_errors(const Machine& machine,
                                 const std::vector<MeasuredTraining>& trained);

// Tables: measured and modelled time per operation and shape; the errors of the fits; measured and
// predicted steps.
std::string calibration_table(const Machine& machine, const std::vector<MeasuredTraining>& trained);

}  // namespace kintsugi
