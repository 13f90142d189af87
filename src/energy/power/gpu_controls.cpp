#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "core/file.h"
#include "core/units.h"
#include "energy/meters/libraries.h"
#include "energy/meters/sysfs.h"
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

namespace fs = std::filesystem;

// The power cap of an AMD GPU in sysfs, in microwatts.
class AmdControl : public GpuControl {
 public:
  AmdControl(const std::string& pci, fs::path folder)
      : GpuControl("AMD GPU " + pci, pci), folder_(std::move(folder)) {}

  std::optional<double> power_limit_w() const override { return watts("power1_cap"); }
  std::optional<ControlRange> power_range_w() const override {
    const auto low = watts("power1_cap_min"), high = watts("power1_cap_max");
    if (!low || !high) return std::nullopt;
    return ControlRange{*low, *high};
  }
  std::string set_power_limit(double watts) override {
    const fs::path file = folder_ / "power1_cap";
    const std::string text = fmt::format("{:.0f}", watts * 1e6);
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    const bool done = descriptor >= 0 && ::write(descriptor, text.data(), text.size()) ==
                                             static_cast<ssize_t>(text.size());
    const std::string why = done ? "" : fmt::format("{}: {}", file.string(), std::strerror(errno));
    if (descriptor >= 0) ::close(descriptor);
    return why;
  }

 private:
  std::optional<double> watts(const char* file) const {
    const std::optional<double> value = parse_number(read_small_file(folder_ / file).text);
    if (!value) return std::nullopt;
    return *value * 1e-6;
  }
  fs::path folder_;
};

// The hwmon folder of an AMD GPU with a power cap; empty: this device has none.
fs::path cap_folder(const fs::path& device) {
  for (const std::string& name : names_in(device / "hwmon")) {
    const fs::path folder = device / "hwmon" / name;
    if (read_small_file(folder / "name").text == "amdgpu" &&
        parse_number(read_small_file(folder / "power1_cap_max").text))
      return folder;
  }
  return {};
}

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

std::vector<std::unique_ptr<GpuControl>> amd_controls(const MeterSearch& search) {
  const fs::path devices = search.root / "sys/bus/pci/devices";
  std::vector<std::string> addresses = search.gpus ? *search.gpus : names_in(devices);
  if (search.gpus)
    for (std::string& address : addresses) address = pci_address(address);
  std::vector<std::unique_ptr<GpuControl>> controls;
  for (const std::string& address : addresses) {
    const fs::path folder = cap_folder(devices / address);
    if (folder.empty()) {
      if (search.gpus) failure("{} is no AMD GPU with a power cap", address);
      continue;
    }
    auto gpu = std::make_unique<AmdControl>(address, folder);
    // The second die of a module has a cap of 0: the first one limits both.
    if (gpu->power_range_w().value_or(ControlRange{}).high > 0) controls.push_back(std::move(gpu));
  }
  if (controls.empty()) failure("no AMD GPU with a power cap in {}", devices.string());
  return controls;
}

}  // namespace kintsugi
