#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/file.h"
#include "core/units.h"
#include "energy/meters/pci.h"
#include "energy/power/power_control.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// A number in a file of sysfs; empty if there is none.
std::optional<double> sysfs_number(const fs::path& file) {
  try {
    std::string text = read_text_file(file);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    return parse_real(text);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

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
    const auto value = sysfs_number(folder_ / file);
    if (!value) return std::nullopt;
    return *value * 1e-6;
  }
  fs::path folder_;
};

// The hwmon folder of an AMD GPU with a power cap; empty: this device has none.
fs::path cap_folder(const fs::path& device) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(device / "hwmon", error)) {
    std::ifstream file(entry.path() / "name");
    std::string name;
    if (file >> name && name == "amdgpu" && sysfs_number(entry.path() / "power1_cap_max"))
      return entry.path();
  }
  return {};
}

}  // namespace

std::vector<std::unique_ptr<GpuControl>> amd_controls(const MeterSearch& search) {
  const fs::path devices = search.root / "sys/bus/pci/devices";
  std::vector<std::string> addresses;
  if (search.gpus) {
    for (const std::string& gpu : *search.gpus) addresses.push_back(pci_address(gpu));
  } else {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(devices, error))
      addresses.push_back(entry.path().filename().string());
    std::sort(addresses.begin(), addresses.end());
  }
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
