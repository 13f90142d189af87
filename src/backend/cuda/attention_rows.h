#pragma once

#include <cuda_runtime_api.h>

#include "tensor/tensor.h"

// What happens to whole rows of attention after it was computed.
namespace kintsugi::cuda {

// Backend's attention_merge.
void attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse, cudaStream_t stream);

// out 0 and lse -infinity where document_start (batch, queries) lies beyond the query itself. The
// first query stands at the first key.
void clear_blind_rows(Tensor out, Tensor lse, Tensor document_start, cudaStream_t stream);

}  // namespace kintsugi::cuda
