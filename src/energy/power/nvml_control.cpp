#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "energy/meters/ear.h"
#include "energy/meters/nvml.h"
#include "energy/power/power_control.h"

namespace kintsugi {
namespace {

class NvmlControl : public GpuControl {
 public:
  NvmlControl(const Nvml::Gpu& gpu, std::shared_ptr<const Nvml> nvml, std::filesystem::path root)
      : GpuControl(fmt::format("{} {}", gpu.name, gpu.pci), gpu.pci),
        nvml_(std::move(nvml)),
        device_(gpu.device),
        root_(std::move(root)) {}

  std::optional<double> power_limit_w() const override {
    const auto milliwatts =
        nvml_->value<unsigned>("nvmlDeviceGetPowerManagementLimit", device_, nullptr);
    if (!milliwatts) return std::nullopt;
    return *milliwatts * 1e-3;
  }

  std::optional<ControlRange> power_range_w() const override {
    unsigned low = 0, high = 0;
    if (nvml_->call("nvmlDeviceGetPowerManagementLimitConstraints", device_, &low, &high) !=
        Nvml::kSuccess)
      return std::nullopt;
    return ControlRange{low * 1e-3, high * 1e-3};
  }

  // Of the highest memory clock: the one that a training runs with.
  std::vector<int> clocks_mhz() const override {
    const std::vector<unsigned> memory = list("nvmlDeviceGetSupportedMemoryClocks");
    if (memory.empty()) return {};
    const std::vector<unsigned> clocks = list("nvmlDeviceGetSupportedGraphicsClocks",
                                              *std::max_element(memory.begin(), memory.end()));
    std::vector<int> result(clocks.begin(), clocks.end());
    std::sort(result.begin(), result.end(), std::greater<>());
    return result;
  }

  std::string set_power_limit(double watts) override {
    return outcome("nvmlDeviceSetPowerManagementLimit", static_cast<unsigned>(watts * 1e3 + 0.5));
  }

  // EAR's daemon may set clocks where NVML needs root.
  std::string lock_clock(int mhz) override {
    const auto clock = static_cast<unsigned>(mhz);
    const std::string refused = outcome("nvmlDeviceSetGpuLockedClocks", clock, clock);
    if (refused.empty()) return "";
    if (set_by_ear(mhz)) {
      by_ear_ = true;
      return "";
    }
    return refused;
  }

  std::string unlock_clock() override {
    if (!by_ear_) return outcome("nvmlDeviceResetGpuLockedClocks");
    by_ear_ = false;
    const std::vector<int> clocks = clocks_mhz();
    return !clocks.empty() && set_by_ear(clocks.front()) ? "" : "EAR refused it";
  }

 private:
  template <class... Args>
  std::string outcome(const char* function, Args... args) const {
    const std::optional<int> code = nvml_->call(function, device_, args...);
    if (code == Nvml::kSuccess) return "";
    return fmt::format("NVML refused it ({})", nvml_->error_text(function, code));
  }

  template <class... Of>
  std::vector<unsigned> list(const char* function, Of... of) const {
    std::vector<unsigned> values(4096);
    auto count = static_cast<unsigned>(values.size());
    if (nvml_->call(function, device_, of..., &count, values.data()) != Nvml::kSuccess) return {};
    values.resize(std::min<std::size_t>(count, values.size()));
    return values;
  }

  bool set_by_ear(int mhz) {
    try {
      if (!ear_) ear_ = Ear::connect(root_);
      const auto index = nvml_->value<unsigned>("nvmlDeviceGetIndex", device_, nullptr);
      return index && ear_->set_gpu_clock(static_cast<int>(*index), mhz);
    } catch (const Failure&) {
      return false;
    }
  }

  std::shared_ptr<const Nvml> nvml_;
  Nvml::Device device_;
  std::filesystem::path root_;
  std::shared_ptr<Ear> ear_;
  bool by_ear_ = false;
};

}  // namespace

std::vector<std::unique_ptr<GpuControl>> nvml_controls(const MeterSearch& search) {
  const auto nvml = std::make_shared<const Nvml>(search.root);
  std::vector<std::unique_ptr<GpuControl>> controls;
  std::string problem;
  for (const Nvml::Gpu& gpu : nvml->gpus(search.gpus)) {
    const std::string why = !gpu.problem.empty()        ? gpu.problem
                            : nvml->has_mig(gpu.device) ? "MIG is enabled, its instances share it"
                                                        : "";
    if (why.empty())
      controls.push_back(std::make_unique<NvmlControl>(gpu, nvml, search.root));
    else
      problem = fmt::format("GPU {}: {}", gpu.pci, why);
  }
  // All or none: a setting is for all GPUs of the job on this node.
  if (!problem.empty()) failure("{}", problem);
  if (controls.empty()) failure("NVML finds no GPU");
  return controls;
}

}  // namespace kintsugi
