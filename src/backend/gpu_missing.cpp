// Replaces backend/gpu/ in a binary built for no GPU.
#include "backend/gpu/gpu_backend.h"
#include "core/error.h"

namespace kintsugi {

std::string gpu_platform() { return ""; }
std::string gpu_library_versions() { return ""; }
int gpu_device_count() { return 0; }
std::vector<Device> gpu_devices() { return {}; }
void prepare_gpu_profile() {}

std::unique_ptr<Backend> make_gpu_backend(const GpuOptions&) {
  user_error(
      "this binary was built without CUDA: build it where a CUDA toolkit is installed, or set "
      "device: cpu");
}

}  // namespace kintsugi
