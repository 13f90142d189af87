#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "backend/backend.h"

// Attention by our own kernels: every floating-point type, any head size up to 256, any number of
// queries and keys. Deterministic. The arguments are those of Backend's attention operations.
namespace kintsugi::cuda {

void flash_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                   const AttentionOptions& options, cudaStream_t stream);

// scratch: flash_backward_scratch_bytes(q) bytes of device memory
void flash_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                    Tensor k, Tensor v, const AttentionOptions& options, void* scratch,
                    cudaStream_t stream);
std::size_t flash_backward_scratch_bytes(const Tensor& q);

}  // namespace kintsugi::cuda
