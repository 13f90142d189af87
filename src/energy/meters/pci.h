#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kintsugi {

// "0000:1b:00.0" of "0000:1B:00.0", "00000000:1B:00.0" (as NVML and CUDA write it) or "1b:00.0";
// "" if the text is no PCI address.
std::string pci_address(std::string_view text);

// The same of its numbers.
std::string pci_address(unsigned domain, unsigned bus, unsigned device, unsigned function = 0);

// The GPUs of NVIDIA and AMD in sys/bus/pci/devices; 0: unknown.
int count_gpus(const std::filesystem::path& root);

}  // namespace kintsugi
