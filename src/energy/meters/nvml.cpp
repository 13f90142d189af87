#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/libraries.h"
#include "energy/meters/sysfs.h"

namespace kintsugi {
namespace {

// nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3.
struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
};

constexpr const char* kNvmlEnergy = "nvmlDeviceGetTotalEnergyConsumption";  // mJ
constexpr const char* kNvmlPower = "nvmlDeviceGetPowerUsage";               // mW

class NvmlMeter : public Meter {
 public:
  NvmlMeter(MeterIdentity identity, std::shared_ptr<const Nvml> nvml, Nvml::Device device)
      : Meter(std::move(identity)), nvml_(std::move(nvml)), device_(device) {}

  MeterReading read() override {
    MeterReading reading;
    std::string why;
    if (identity().kind == MeterKind::Counter) {
      const auto energy = nvml_->value<unsigned long long>(kNvmlEnergy, device_, &why);
      if (!energy) failure("{}: {}", identity().detail, why);
      reading.joules = static_cast<double>(*energy) * 1e-3;
    }
    if (const auto power = nvml_->value<unsigned>(kNvmlPower, device_, &why))
      reading.watts = *power * 1e-3;
    else if (identity().kind == MeterKind::Power)
      failure("{}: {}", identity().detail, why);
    return reading;
  }

 private:
  std::shared_ptr<const Nvml> nvml_;
  Nvml::Device device_;
};

// Why this GPU has no meter; empty: it was added.
std::string add_nvml_gpu(const std::shared_ptr<const Nvml>& nvml, const Nvml::Gpu& gpu,
                         const std::string& scope, FoundMeters& found) {
  if (!gpu.problem.empty()) return gpu.problem;
  if (nvml->has_mig(gpu.device))
    return "MIG is enabled, and an instance of a GPU has no energy counter";
  std::string no_energy, no_power;
  const bool counts =
      nvml->value<unsigned long long>(kNvmlEnergy, gpu.device, &no_energy).has_value();
  if (!counts && !nvml->value<unsigned>(kNvmlPower, gpu.device, &no_power))
    return fmt::format("no energy counter ({}) and no power ({})", no_energy, no_power);
  found.meters.push_back(std::make_unique<NvmlMeter>(
      MeterIdentity{.source = "nvml",
                    .scope = scope,
                    .level = EnergyLevel::Gpu,
                    .kind = counts ? MeterKind::Counter : MeterKind::Power,
                    .detail = fmt::format("{} {}", gpu.name, gpu.pci)},
      nvml, gpu.device));
  return "";
}

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

void add_nvml(const MeterSearch& search, FoundMeters& found) {
  try {
    const auto nvml = std::make_shared<const Nvml>(search.root);
    const std::vector<Nvml::Gpu> gpus = nvml->gpus(search.gpus);
    if (gpus.empty()) found.missing.push_back({"nvml", "NVML finds no GPU"});
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const std::string scope = fmt::format("gpu{}", i);
      const std::string why = add_nvml_gpu(nvml, gpus[i], scope, found);
      if (!why.empty())
        found.missing.push_back({"nvml", fmt::format("{}: {}", gpus[i].pci, why), scope});
    }
  } catch (const Failure& error) {
    found.missing.push_back({"nvml", error.what()});
  }
}

}  // namespace kintsugi
