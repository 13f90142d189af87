#pragma once

#include <string>

#include "backend/backend.h"

namespace kintsugi {

// "matmul 16384x2048x8192 + residual": what the product is, for timers and traces.
std::string matmul_name(const Tensor& c, const Tensor& a, const MatmulOptions& options);

}  // namespace kintsugi
