#pragma once

#include <string>
#include <string_view>

#include "backend/backend.h"
#include "backend/operation_trace.h"
#include "backend/sim/sim_backend.h"
#include "core/trace.h"

namespace kintsugi {

// The name of a call in timers and traces: the operation's name. A matmul and an attention also get
// their shape and options, such as "matmul 16384x2048x8192 + residual" (m x n x k) and
// "attention_forward 4x32x4096x64 causal" (batch x heads x queries x dim).
template <class... Arguments>
std::string operation_name(const char* operation, const Arguments&...) {
  return operation;
}
std::string operation_name(const char* operation, const Tensor& c, const Tensor& a, const Tensor& b,
                           const MatmulOptions& options);
std::string operation_name(const char* operation, const Tensor& c, const Quantized& a,
                           const Quantized& b, const MatmulOptions& options);
std::string operation_name(const char* operation, const Tensor& out, const Tensor& lse,
                           const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options);
std::string operation_name(const char* operation, const Tensor& dq, const Tensor& dk,
                           const Tensor& dv, const Tensor& dout, const Tensor& out,
                           const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options);

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
    counter_.do_##name(__VA_ARGS__);              \
    return take();                                \
  }
#include "backend/operations.def"

 private:
  OperationCost take();

  OperationTrace counted_;
  SimBackend counter_;
};

// A hook for tests: slows one operation, so that a profile has something to find. A traced backend
// executes the operation this many times.
struct OperationRepeat {
  std::string operation = {};
  int times = 1;

  int of(std::string_view name) const { return name == operation ? times : 1; }
};

// `text` is "swiglu_forward:3". Throws UserError unless it names an operation whose repetition
// changes no result, and 2 to 1000 times.
OperationRepeat parse_operation_repeat(const std::string& text);
// From the environment variable KINTSUGI_REPEAT_OPERATION, if it is set.
OperationRepeat operation_repeat();

}  // namespace kintsugi
