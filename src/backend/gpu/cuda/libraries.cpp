#include "backend/gpu/libraries.h"

#include <cuda_runtime_api.h>
#include <cudnn_version.h>
#include <fmt/format.h>

#include <charconv>

#include "backend/gpu/cuda/cublaslt.h"
#include "backend/gpu/gpu_backend.h"

namespace kintsugi {

std::string gpu_library_versions() {
  return fmt::format("CUDA {}.{}, cuDNN {}.{}.{}", CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10, CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
}

void prepare_gpu_profile() {}  // CUPTI attaches to a runtime that runs

namespace gpu {

std::string why_no_fp8(const Device& device, const Traits& traits, bool one_scale) {
  double capability = 0;
  const std::string& text = traits.architecture;
  std::from_chars(text.data(), text.data() + text.size(), capability);
  if (capability < 8.9)
    return fmt::format("{} has compute capability {}, fp8 needs 8.9 or newer", device.name, text);
  if (one_scale) return "";
  constexpr const char* kAdvice = "use train.fp8.recipe: tensorwise";
  // cuBLASLt has the kernels for Hopper alone.
  if (capability < 9 || capability >= 10)
    return fmt::format("{} has compute capability {}, scales for each row need 9.0: {}",
                       device.name, text, kAdvice);
  const std::string missing = why_no_row_scales();
  return missing.empty() ? "" : fmt::format("{}: {}: {}", device.name, missing, kAdvice);
}

}  // namespace gpu
}  // namespace kintsugi
