#pragma once

#include <cuda_runtime_api.h>

#include "tensor/tensor.h"

namespace kintsugi::cuda {

// out 0 and lse -infinity where document_start (batch, queries) lies beyond the query itself. The
// first query stands at the first key.
void clear_blind_rows(Tensor out, Tensor lse, Tensor document_start, cudaStream_t stream);

}  // namespace kintsugi::cuda
