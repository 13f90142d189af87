#include <cuda_runtime_api.h>
#include <cudnn_version.h>
#include <fmt/format.h>

#include "backend/cuda/cuda_backend.h"

namespace kintsugi {

std::string cuda_library_versions() {
  return fmt::format("CUDA {}.{}, cuDNN {}.{}.{}", CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10, CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
}

}  // namespace kintsugi
