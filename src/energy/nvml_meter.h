#pragma once

#include <optional>
#include <string>

namespace kintsugi {

// The energy counter of one NVIDIA GPU, read through NVML. The library is loaded at run time; a
// machine without it has no counter.
class NvmlMeter {
 public:
  explicit NvmlMeter(const std::string& pci_bus_id);
  ~NvmlMeter();
  NvmlMeter(const NvmlMeter&) = delete;
  NvmlMeter& operator=(const NvmlMeter&) = delete;

  // Joules since the driver was loaded; nullopt if there is no counter.
  std::optional<double> joules() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace kintsugi
