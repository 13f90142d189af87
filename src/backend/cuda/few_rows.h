#pragma once

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// c (m, n) = a (m, k) b (n, k)^T for few rows m, as in decoding: the time is that of reading b.
// Returns false, without any effect, for operands that it does not compute: more rows, a GELU,
// fp64, b not transposed, or rows of a and b that do not consist of whole 16-byte words.
bool matmul_few_rows(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                     const MatmulOptions& options);

}  // namespace kintsugi::cuda
