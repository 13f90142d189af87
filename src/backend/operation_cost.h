#pragma once

#include <string>

#include "backend/backend.h"
#include "backend/operation_trace.h"
#include "backend/sim/sim_backend.h"
#include "core/trace.h"

namespace kintsugi {

// The work of one call of an operation, as the planner counts it.
struct OperationCost {
  WorkKind work = WorkKind::Unknown;
  double flops = 0;  // a multiply-add is 2; attention counts only the pairs that the mask keeps
  double bytes = 0;  // read and written
  DType dtype = DType::F32;
};

// The span of a call, without its number, its phases and its times.
TraceSpan operation_span(std::string name, const OperationCost& cost);

// Computes the cost of a call: one function per entry of operations.def, with the same arguments.
// Reads shapes and options of the tensors, never their memory. Not thread-safe.
class CostMeter {
 public:
  CostMeter() : counter_(counted_) {}
  CostMeter(const CostMeter&) = delete;
  CostMeter& operator=(const CostMeter&) = delete;

#define KINTSUGI_OPERATION(name, parameters, ...) \
  OperationCost name parameters {                 \
    counter_.name(__VA_ARGS__);                   \
    return take();                                \
  }
#include "backend/operations.def"

 private:
  OperationCost take();

  OperationTrace counted_;
  SimBackend counter_;
};

}  // namespace kintsugi
