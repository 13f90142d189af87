#include "energy/nvml_meter.h"

#include <dlfcn.h>

namespace kintsugi {
namespace {

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

NvmlMeter::NvmlMeter(const std::string& pci_bus_id) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  const auto init = symbol<int (*)()>(library_, "nvmlInit_v2");
  const auto find =
      symbol<int (*)(const char*, void**)>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  if (init == nullptr || find == nullptr || init() != 0 || find(pci_bus_id.c_str(), &device_) != 0)
    device_ = nullptr;
}

NvmlMeter::~NvmlMeter() {
  if (library_ != nullptr) dlclose(library_);
}

std::optional<double> NvmlMeter::joules() const {
  if (device_ == nullptr) return std::nullopt;
  const auto read =
      symbol<int (*)(void*, unsigned long long*)>(library_, "nvmlDeviceGetTotalEnergyConsumption");
  unsigned long long millijoules = 0;
  if (read == nullptr || read(device_, &millijoules) != 0) return std::nullopt;
  return static_cast<double>(millijoules) * 1e-3;
}

}  // namespace kintsugi
