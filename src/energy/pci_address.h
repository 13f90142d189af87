#pragma once

#include <string>
#include <string_view>

namespace kintsugi {

// "0000:1b:00.0", as the kernel writes the address of a PCI device.
std::string pci_name(unsigned domain, unsigned bus, unsigned device, unsigned function = 0);
// The same address from any spelling: "00000000:1B:00.0", "1b:00.0". Unchanged if it is none.
std::string normal_pci(std::string_view text);

}  // namespace kintsugi
