#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tensor/tensor.h"

// Helpers for all files of the NCCL implementation.
namespace kintsugi::nccl {

// Throw Failure with the message of CUDA or NCCL.
void check_cuda(cudaError_t status, const char* call);
void check_nccl(ncclResult_t status, const char* call);

ncclDataType_t type_of(DType dtype);

// Whether the event has occurred.
bool is_done(cudaEvent_t event);

}  // namespace kintsugi::nccl
