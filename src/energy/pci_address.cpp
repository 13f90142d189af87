#include "energy/pci_address.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace kintsugi {
namespace {

// Takes the hexadecimal number up to `end` from the front; at the end of the text without `end`.
std::optional<unsigned> take_hex(std::string_view& text, char end) {
  unsigned value = 0;
  const char* const last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), last, value, 16);
  if (error != std::errc() || (end != '\0' ? stop == last || *stop != end : stop != last))
    return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()) + (end != '\0' ? 1 : 0));
  return value;
}

}  // namespace

std::string pci_name(unsigned domain, unsigned bus, unsigned device, unsigned function) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

std::string normal_pci(std::string_view text) {
  std::string_view rest = text;
  std::optional<unsigned> domain = 0U, bus, device, function;
  if (text.find(':') != text.rfind(':')) domain = take_hex(rest, ':');
  if (domain) bus = take_hex(rest, ':');
  if (bus) device = take_hex(rest, '.');
  if (device) function = take_hex(rest, '\0');
  return function ? pci_name(*domain, *bus, *device, *function) : std::string(text);
}

}  // namespace kintsugi
