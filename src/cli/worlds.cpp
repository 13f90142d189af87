#include "cli/worlds.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"

namespace kintsugi {

std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads) {
  const bool cuda = device == DeviceChoice::Cuda || (device == DeviceChoice::Auto && cuda_device_count() > 0);
  if (cuda) return make_cuda_backend({});
  return make_cpu_backend(static_cast<int>(threads));
}

}  // namespace kintsugi
