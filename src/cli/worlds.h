#pragma once

#include <memory>

#include "backend/backend.h"
#include "train/config.h"

namespace kintsugi {

// Only the command line picks a world: the GPU when there is one and the device is auto.
std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads,
                                      const CudaConfig& cuda = {});

}  // namespace kintsugi
