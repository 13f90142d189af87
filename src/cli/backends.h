#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/gpu/gpu_backend.h"
#include "comm/communicator.h"
#include "comm/rank_failure.h"
#include "core/trace.h"
#include "plan/machines/machine.h"
#include "train/config/config.h"

namespace kintsugi {

// Resolves `auto`: cuda or hip if this machine has such a GPU, otherwise cpu.
DeviceChoice device_in_use(DeviceChoice device);

// Whether this build computes on the GPUs of `vendor`; empty: the vendor is not known.
std::optional<bool> drives_gpus(GpuVendor vendor);
// Why it does not: "it was built without HIP …", or about a machine "this program cannot use the
// GPUs of …: it was …". Empty: it does, or that is not known.
std::string why_undriven(GpuVendor vendor);
std::string why_undriven(const Machine& machine);
std::string_view name_of(GpuVendor vendor);  // "NVIDIA"

// Creates the backend of `device`. The ranks of one node share its GPUs by `local_rank`.
// Here and below, `trace` (may be nullptr) records the operations and must outlive the result.
std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads,
                                      const GpuConfig& gpu = {}, int local_rank = 0,
                                      Trace* trace = nullptr);

// All ranks of the MPI job of this process; a single rank without MPI.
std::unique_ptr<World> make_world(Trace* trace = nullptr);

// The ranks of `hosts` as a World for tensors in the backend's memory: NCCL for GPUs. A later
// NCCL failure is reported to on_failure, from another thread.
struct DeviceWorld {
  std::unique_ptr<World> gpus;  // nullptr: use `hosts`
  std::string description;
  std::optional<std::string> network = {};  // between nodes; empty: not known; none: no NCCL there
};
DeviceWorld make_device_world(World& hosts, Backend& backend, const CommConfig& comm,
                              std::function<void(const RankFailure&)> on_failure,
                              Trace* trace = nullptr);

// The index of the GPU that gpu.device names: an index, a UUID or the beginning of one, a PCI id,
// or `auto` (by the local rank). UserError with the list of GPUs if none or several match.
int choose_gpu(const std::string& choice, const std::vector<Device>& devices, int local_rank = 0);

}  // namespace kintsugi
