#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/trace.h"

namespace kintsugi {

// The backend for GPUs: the vendor's libraries for matmuls and attention, our own kernels for
// everything else.
struct GpuOptions {
  int device = 0;
  bool deterministic = true;   // the same bits in every run on the same GPU
  bool tf32 = false;           // fp32 matmuls on the tensor cores, with 10 bits of mantissa
  bool own_attention = false;  // our own kernels where the library has some, to compare them
  // Record repeated calls as graphs; empty: where these are reliable.
  std::optional<bool> graphs = {};
  // The file that stores the matmul algorithm chosen for each shape. The choice depends on timing,
  // so without this file a deterministic run uses the library's first proposal.
  std::string matmul_cache = {};
  bool time_operations = false;  // for take_operation_times
  Trace* trace = nullptr;        // records a span of every operation while it is on
  // Backend::host(): for updates of offloaded state on the host.
  std::shared_ptr<Backend> host = {};
};

// These do not throw: without a GPU, a driver or a build for GPUs there are no devices.
std::string gpu_platform();  // "cuda", "hip", or empty if this program was built for neither
std::string gpu_library_versions();  // "CUDA 12.4, cuDNN 9.14.0"; empty if not built
int gpu_device_count();
std::vector<Device> gpu_devices();
// For a process that will record a profile: call it before anything uses a GPU, MPI included.
// rocprofiler-sdk sees only a runtime that starts after it. If that fails, the profile says why.
void prepare_gpu_profile();

// Throws UserError if there is no such device or the driver cannot be used.
std::unique_ptr<Backend> make_gpu_backend(const GpuOptions& options = {});

}  // namespace kintsugi
