#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/trace.h"

namespace kintsugi {

// The CUDA backend: cuBLASLt for matmuls, cuDNN for attention, our own kernels for everything else.
struct CudaOptions {
  int device = 0;
  bool deterministic = true;  // the same bits in every run on the same GPU
  bool tf32 = false;          // fp32 matmuls on the tensor cores, with 10 bits of mantissa
  bool graphs = true;         // record repeated calls as CUDA graphs
  // The file that stores the matmul algorithm chosen for each shape. The choice depends on timing,
  // so without this file a deterministic run uses the library's first proposal.
  std::string matmul_cache = {};
  bool time_operations = false;  // for take_operation_times
  Trace* trace = nullptr;        // records a span of every operation while it is on
  // Backend::host(): for updates of offloaded state on the host.
  std::shared_ptr<Backend> host = {};
};

// The device time of one kind of operation.
struct OperationTime {
  std::string name;
  long calls = 0;
  double milliseconds = 0;
};

struct CudaDevice {
  int index = 0;
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-5f2c…", as nvidia-smi prints it
  std::string pci;   // "0000:1b:00.0"
  std::size_t memory_bytes = 0;
};

// These do not throw: without a GPU, a driver or a build with CUDA there are no devices.
int cuda_device_count();
std::string cuda_library_versions();  // "CUDA 12.4, cuDNN 9.14.0"; empty if not built
std::vector<CudaDevice> cuda_devices();

// Throws UserError if there is no such device or the driver cannot be used.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});

// The cudaStream_t of a CUDA backend's operations; nullptr for any other backend.
void* cuda_stream(Backend& backend);
CudaDevice cuda_device_of(Backend& backend);  // empty for any other backend

// The time at which a CUDA backend's device reached a cudaEvent_t, in seconds of the trace. The
// event must be recorded after the trace began.
double cuda_event_time(Backend& backend, void* event);

// The times of the operations since the last call, for a CUDA backend with time_operations.
std::vector<OperationTime> take_operation_times(Backend& backend);

}  // namespace kintsugi
