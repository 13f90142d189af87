#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "comm/communicator.h"
#include "train/config.h"

namespace kintsugi {

// Only the command line picks a world: the GPU when there is one and the device is auto.
std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads,
                                      const CudaConfig& cuda = {});

// All ranks of the job that this process was started in; one if it was started by itself.
std::unique_ptr<World> make_world();

// The index of the GPU that cuda.device names: its number, its UUID (or the beginning of it), or
// its PCI id. UserError, with those there are, if none fits.
int choose_cuda_device(const std::string& choice, const std::vector<CudaDevice>& devices);

}  // namespace kintsugi
