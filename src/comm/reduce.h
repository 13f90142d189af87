#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace kintsugi {

// destination[i] = the sum or maximum of parts[0][i], parts[1][i], …, always in that order, so that
// a result never depends on who computes it or when. 16-bit floats are added in float and rounded
// once. destination may be one of the parts. Host memory. A NaN anywhere makes a maximum NaN.
void reduce_parts(void* destination, std::span<const void* const> parts, std::int64_t elements,
                  DType dtype, ReduceOp op);

}  // namespace kintsugi
