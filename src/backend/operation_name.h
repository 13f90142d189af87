#pragma once

#include <string>

#include "backend/backend.h"

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

}  // namespace kintsugi
