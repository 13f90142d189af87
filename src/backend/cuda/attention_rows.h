#pragma once

#include <cuda_runtime_api.h>

#include "tensor/tensor.h"

namespace kintsugi::cuda {

// Sets out to 0 and lse to -infinity for queries that see no key: document_start (batch, queries)
// is after the query itself. The first query has the position of the first key.
void clear_empty_rows(Tensor out, Tensor lse, Tensor document_start, cudaStream_t stream);

}  // namespace kintsugi::cuda
