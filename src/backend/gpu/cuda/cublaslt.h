#pragma once

#include <string>

namespace kintsugi::gpu {

// Why cuBLASLt cannot scale the rows of fp8 operands, on a GPU that could; empty: it can.
std::string why_no_row_scales();

}  // namespace kintsugi::gpu
