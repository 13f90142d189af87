#include "energy/nvml.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "energy/pci.h"

namespace kintsugi {
namespace {

// nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3.
struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
};

}  // namespace

Nvml::Nvml(const std::filesystem::path& root)
    : library_(root, {.files = {"libnvidia-ml.so.1", "libnvidia-ml.so"}}) {
  const std::optional<int> code = call("nvmlInit_v2");
  if (code != kSuccess) failure("nvmlInit: {}", error_text("nvmlInit_v2", code));
}

Nvml::~Nvml() { call("nvmlShutdown"); }

std::string Nvml::error_text(const char* function, std::optional<int> code) const {
  if (!code) return fmt::format("this driver's NVML has no {}", function);
  auto* const text = library_.find<const char*(int)>("nvmlErrorString");
  const char* const words = text != nullptr ? text(*code) : nullptr;
  return words != nullptr ? words : fmt::format("NVML error {}", *code);
}

Nvml::Gpu Nvml::describe(Device device) const {
  Gpu gpu{.device = device};
  std::array<char, 96> name{};
  if (call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size() - 1)) ==
      kSuccess)
    gpu.name = name.data();
  NvmlPci pci{};
  if (call("nvmlDeviceGetPciInfo_v3", device, &pci) == kSuccess)
    gpu.pci = pci_address(pci.domain, pci.bus, pci.device);
  return gpu;
}

std::vector<Nvml::Gpu> Nvml::gpus(const std::optional<std::vector<std::string>>& addresses) const {
  std::vector<Gpu> found;
  for (const std::string& address : addresses.value_or(std::vector<std::string>())) {
    const char* const function = "nvmlDeviceGetHandleByPciBusId_v2";
    Device device = nullptr;
    const std::optional<int> code = call(function, address.c_str(), &device);
    Gpu gpu = code == kSuccess ? describe(device) : Gpu{.problem = error_text(function, code)};
    gpu.pci = pci_address(address);
    found.push_back(std::move(gpu));
  }
  if (addresses) return found;
  unsigned count = 0;
  const std::optional<int> counted = call("nvmlDeviceGetCount_v2", &count);
  if (counted != kSuccess)
    failure("nvmlDeviceGetCount: {}", error_text("nvmlDeviceGetCount_v2", counted));
  for (unsigned index = 0; index < count; ++index) {
    const char* const function = "nvmlDeviceGetHandleByIndex_v2";
    Device device = nullptr;
    const std::optional<int> code = call(function, index, &device);
    found.push_back(code == kSuccess ? describe(device)
                                     : Gpu{.pci = fmt::format("number {}", index),
                                           .problem = error_text(function, code)});
  }
  return found;
}

bool Nvml::has_mig(Device device) const {
  unsigned current = 0, pending = 0;
  return call("nvmlDeviceGetMigMode", device, &current, &pending) == kSuccess && current == 1;
}

}  // namespace kintsugi
