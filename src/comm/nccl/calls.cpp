#include "comm/nccl/calls.h"

#include "core/error.h"

namespace kintsugi::nccl {

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  failure("{} failed: {}", call, cudaGetErrorString(status));
}

void check_nccl(ncclResult_t status, const char* call) {
  if (status == ncclSuccess) return;
  const char* detail = ncclGetLastError(nullptr);
  failure("{} failed: {}{}{}", call, ncclGetErrorString(status),
          detail != nullptr && *detail != '\0' ? ": " : "", detail != nullptr ? detail : "");
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return ncclFloat64;
    case DType::F32:
      return ncclFloat32;
    case DType::BF16:
      return ncclBfloat16;
    case DType::F16:
      return ncclFloat16;
    case DType::I64:
      return ncclInt64;
    case DType::I32:
      return ncclInt32;
    case DType::U8:
    case DType::F8:  // is sent, never reduced
      return ncclUint8;
  }
  return ncclUint8;
}

bool is_done(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // clears it, or the next kernel launch would report it
    return false;
  }
  check_cuda(status, "a GPU operation");
  return true;
}

}  // namespace kintsugi::nccl
