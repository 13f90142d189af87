#pragma once

#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace kintsugi::gpu {

// The dense matmul rate in FLOP/s from the data sheet, for GPUs known by name that have this type.
// For others the caller measures it, except in fp8.
std::optional<double> known_peak_flops(std::string_view gpu, DType dtype, bool tf32);

}  // namespace kintsugi::gpu
