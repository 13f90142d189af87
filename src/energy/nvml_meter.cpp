#include <fmt/format.h>

#include "core/error.h"
#include "energy/device_meters.h"
#include "energy/nvml.h"

namespace kintsugi {
namespace {

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
