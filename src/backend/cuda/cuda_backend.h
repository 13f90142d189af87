#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/trace.h"

namespace kintsugi {

// The CUDA world: cuBLASLt for matrix products, cuDNN for attention, our own kernels for everything
// between them.
struct CudaOptions {
  int device = 0;
  bool deterministic = true;  // the same bits in every run on the same GPU
  bool tf32 = false;          // fp32 products on the matrix units, with 10 bits of mantissa
  bool graphs = true;         // record repeated calls as CUDA graphs
  // Where the algorithms found for each shape are kept. Timing decides them, so a deterministic run
  // without such a file takes the library's first proposal instead.
  std::string matmul_cache = {};
  bool time_operations = false;  // for take_operation_times
  Trace* trace = nullptr;        // takes a span of every operation while it is on
  // Backend::host(): for updates of offloaded state on the host.
  std::shared_ptr<Backend> host = {};
};

// Device time that one kind of operation took.
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

// Neither throws: a machine without GPU or driver, and a binary built without CUDA, simply have
// none.
int cuda_device_count();
std::vector<CudaDevice> cuda_devices();

// UserError where there is no such device or the driver does not serve.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});

// The cudaStream_t that a CUDA backend's operations are queued on; nullptr of any other backend.
void* cuda_stream(Backend& backend);
CudaDevice cuda_device_of(Backend& backend);  // empty of any other backend

// When the device came to a cudaEvent_t, in the trace's seconds: of a CUDA backend, for events
// since its trace began.
double cuda_event_time(Backend& backend, void* event);

// What the operations of a CUDA backend made with time_operations took since the last call.
std::vector<OperationTime> take_operation_times(Backend& backend);

}  // namespace kintsugi
