#pragma once

#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace kintsugi::cuda {

// The data sheet's dense matrix rate in FLOP/s of a GPU we know by name; nothing for others, which
// measure it instead.
std::optional<double> known_peak_flops(std::string_view gpu, DType dtype, bool tf32);

}  // namespace kintsugi::cuda
