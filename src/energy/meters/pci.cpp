#include "energy/meters/pci.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "energy/meters/small_file.h"

namespace kintsugi {
namespace {

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c); });
}

}  // namespace

std::string pci_address(std::string_view text) {
  std::string_view domain = "0000";
  if (std::count(text.begin(), text.end(), ':') == 2) {
    domain = text.substr(0, text.find(':'));
    text.remove_prefix(domain.size() + 1);
    if (domain.size() > 4 && domain.size() <= 8 &&
        domain.find_first_not_of('0') >= domain.size() - 4)
      domain.remove_prefix(domain.size() - 4);
  }
  if (text.size() != 7 || text[2] != ':' || text[5] != '.' || !is_hex(domain, 4) ||
      !is_hex(text.substr(0, 2), 2) || !is_hex(text.substr(3, 2), 2) || !is_hex(text.substr(6), 1))
    return "";
  std::string address = std::string(domain) + ":" + std::string(text);
  for (char& c : address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return address;
}

std::string pci_address(unsigned domain, unsigned bus, unsigned device, unsigned function) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

int count_gpus(const std::filesystem::path& root) {
  const std::filesystem::path directory = root / "sys/bus/pci/devices";
  int gpus = 0;
  for (const std::string& name : names_in(directory)) {
    const std::string vendor = read_small_file(directory / name / "vendor").text;
    const std::string kind = read_small_file(directory / name / "class").text;
    // Display controllers and processing accelerators.
    if ((vendor == "0x10de" || vendor == "0x1002") &&
        (kind.starts_with("0x03") || kind.starts_with("0x12")))
      ++gpus;
  }
  return gpus;
}

}  // namespace kintsugi
