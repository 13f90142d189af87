#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "comm/communicator.h"
#include "core/trace.h"
#include "train/config/config.h"

namespace kintsugi {

// What `auto` comes to on this machine: cuda where there is a GPU.
DeviceChoice device_in_use(DeviceChoice device);

// Only the command line picks a world: the GPU when there is one and the device is auto.
// `local_rank`: among the ranks of this node, which share its GPUs. A trace that is given here or
// below takes what happens there, and outlives it.
std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads,
                                      const CudaConfig& cuda = {}, int local_rank = 0,
                                      Trace* trace = nullptr);

// All ranks of the job that this process was started in; one if it was started by itself.
std::unique_ptr<World> make_world(Trace* trace = nullptr);

// The ranks of `hosts` for tensors of the backend: the same, or their GPUs. What goes wrong there
// later is told to on_failure, from another thread.
struct DeviceWorld {
  std::unique_ptr<World> gpus;  // none: the hosts
  std::string description;
};
DeviceWorld make_device_world(World& hosts, Backend& backend, const CommConfig& comm,
                              std::function<void(const std::string&)> on_failure,
                              Trace* trace = nullptr);

// The index of the GPU that cuda.device names: its number, its UUID (or the beginning of it), its
// PCI id, or auto: that of the local rank. UserError, with those there are, if none fits.
int choose_cuda_device(const std::string& choice, const std::vector<CudaDevice>& devices,
                       int local_rank = 0);

}  // namespace kintsugi
