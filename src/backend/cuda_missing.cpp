// Replaces backend/cuda/ in a binary built without CUDA.
#include "backend/cuda/cuda_backend.h"
#include "backend/library_memory.h"
#include "core/error.h"

namespace kintsugi {

int cuda_device_count() { return 0; }
std::string cuda_library_versions() { return ""; }
std::vector<CudaDevice> cuda_devices() { return {}; }

void* cuda_stream(Backend&) { return nullptr; }
CudaDevice cuda_device_of(Backend&) { return {}; }
double cuda_event_time(Backend&, void*) { return 0; }
std::vector<OperationTime> take_operation_times(Backend&) { return {}; }

std::size_t library_bytes(Backend&, const LibraryUse&) { return 0; }

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  user_error(
      "this binary was built without CUDA: build it where a CUDA toolkit is installed, or set "
      "device: cpu");
}

}  // namespace kintsugi
