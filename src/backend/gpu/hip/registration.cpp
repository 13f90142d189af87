// The compiler lets every object with kernels register them before main() begins. Here they are
// only noted: the runtime is opened later, or never, and then told (register_kernels). The names
// are hidden, so that libraries which are opened register theirs with the runtime itself.
#include <vector>

#include "backend/gpu/hip/api.h"

namespace kintsugi::gpu::hip {
namespace {

struct Kernel {
  const void* host;
  char* device;
  const char* name;
  unsigned thread_limit;
};
struct Binary {
  const void* data;
  std::vector<Kernel> kernels;
};

std::vector<Binary*>& binaries() {
  static auto* const all = new std::vector<Binary*>;
  return *all;
}

constexpr int kNoDevice = 100;

}  // namespace

void register_kernels(const Api& api) {
  for (const Binary* binary : binaries()) {
    void** const module = api.__hipRegisterFatBinary(binary->data);
    for (const Kernel& kernel : binary->kernels)
      api.__hipRegisterFunction(module, kernel.host, kernel.device, kernel.name,
                                kernel.thread_limit, nullptr, nullptr, nullptr, nullptr, nullptr);
  }
}

}  // namespace kintsugi::gpu::hip

using namespace kintsugi::gpu::hip;

#pragma GCC visibility push(hidden)
extern "C" {

void** __hipRegisterFatBinary(const void* data) {
  binaries().push_back(new Binary{data, {}});
  return reinterpret_cast<void**>(binaries().back());
}

void __hipRegisterFunction(void** binary, const void* host, char* device, const char* name,
                           unsigned thread_limit, void*, void*, void*, void*, int*) {
  reinterpret_cast<Binary*>(binary)->kernels.push_back({host, device, name, thread_limit});
}

// The process ends: its runtime frees what it has.
void __hipUnregisterFatBinary(void**) {}

// Of calls kernel<<<…>>>(…), which this program does not have (kernels/launch.cuh).
int __hipPushCallConfiguration(Dim3, Dim3, std::size_t, void*) { return kNoDevice; }
int __hipPopCallConfiguration(Dim3*, Dim3*, std::size_t*, void**) { return kNoDevice; }
int hipLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, void*) { return kNoDevice; }

}  // extern "C"
#pragma GCC visibility pop
