#pragma once

#include <optional>
#include <string>

namespace kintsugi {

// The energy counter of one NVIDIA GPU, read through the driver's own library, which is opened at
// run time: a machine without it simply has no counter.
class NvmlMeter {
 public:
  explicit NvmlMeter(const std::string& pci_bus_id);
  ~NvmlMeter();
  NvmlMeter(const NvmlMeter&) = delete;
  NvmlMeter& operator=(const NvmlMeter&) = delete;

  // Joules since the driver was loaded; empty when there is no such counter.
  std::optional<double> joules() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace kintsugi
