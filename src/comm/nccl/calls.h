#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tensor/tensor.h"

// What every file of the NCCL world shares.
namespace kintsugi::nccl {

// Failure with CUDA's or NCCL's own words.
void check_cuda(cudaError_t status, const char* call);
void check_nccl(ncclResult_t status, const char* call);

ncclDataType_t type_of(DType dtype);

// Whether the work before an event is done.
bool is_done(cudaEvent_t event);

}  // namespace kintsugi::nccl
