#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace kintsugi {

// destination[i] = the sum or maximum of parts[0][i], parts[1][i], …, always in this order, so that
// the result is the same on every rank and in every run. 16-bit floats are summed in float and
// rounded once. destination may be one of the parts. All are in host memory. The maximum is NaN if
// any part is NaN.
void reduce_parts(void* destination, std::span<const void* const> parts, std::int64_t elements,
                  DType dtype, ReduceOp op);

}  // namespace kintsugi
