#pragma once

#include <string>

#include "backend/backend.h"

namespace kintsugi {

// The name of a call in timers and traces: the operation's name; a matmul also gets its shape and
// options, such as "matmul 16384x2048x8192 + residual".
template <class... Arguments>
std::string operation_name(const char* operation, const Arguments&...) {
  return operation;
}
std::string operation_name(const char* operation, const Tensor& c, const Tensor& a, const Tensor& b,
                           const MatmulOptions& options);

}  // namespace kintsugi
