#include "cli/worlds.h"

#include "backend/cpu/cpu_backend.h"

namespace kintsugi {

std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads) {
  if (device == DeviceChoice::Cuda)
    user_error("device: cuda was asked for, but this binary was built without CUDA: set device to cpu or auto");
  return make_cpu_backend(static_cast<int>(threads));
}

}  // namespace kintsugi
