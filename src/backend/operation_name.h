#pragma once

#include <string>

#include "backend/backend.h"

namespace kintsugi {

// What a call is named in timers and traces: the operation, and of a matmul which one it is, such
// as "matmul 16384x2048x8192 + residual".
template <class... Arguments>
std::string operation_name(const char* operation, const Arguments&...) {
  return operation;
}
std::string operation_name(const char* operation, const Tensor& c, const Tensor& a, const Tensor& b,
                           const MatmulOptions& options);

}  // namespace kintsugi
