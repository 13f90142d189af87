#pragma once

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// c (m, n) = [residual +] scale * a (m, k) op(b) for few k, as adapters add it: the time is that of
// reading and writing c. Returns false, without any effect, for operands that it does not compute:
// types of 32 bits and more, k other than 16, 32, 48 and 64, few rows, a bias or a GELU, a
// transposed, or rows that do not consist of whole 16-byte words.
bool matmul_low_rank(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                     const MatmulOptions& options);

}  // namespace kintsugi::cuda
