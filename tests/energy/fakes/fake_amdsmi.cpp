// A library with the interface of AMD SMI: two dies per socket. Of die i the state has pci<i>
// (domain:bus:device.function), count<i> (of 15.3 uJ), time<i> (ns), watts<i>, energy_error<i>;
// version is the first number of the library's version.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "state.h"

namespace {

int g_dies[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
int dies() {
  int n = 0;
  while (n < 16 && !state_of("pci" + std::to_string(n), "").empty()) ++n;
  return n;
}
std::string of(const char* name, void* die) {
  return name + std::to_string(*static_cast<int*>(die));
}

}  // namespace

extern "C" {

int amdsmi_init(std::uint64_t flags) {
  if (flags != 2) return 1;
  set_state("initialized", "1");
  return static_cast<int>(number_of("init", 0));
}
int amdsmi_shut_down() {
  set_state("initialized", "0");
  return 0;
}
int amdsmi_get_lib_version(std::uint32_t* version) {
  version[0] = static_cast<std::uint32_t>(number_of("version", 25));
  return 0;
}
int amdsmi_status_code_to_string(int code, const char** text) {
  *text = code == 2 ? "AMDSMI_STATUS_NOT_SUPPORTED" : "AMDSMI_STATUS_UNKNOWN";
  return 0;
}
int amdsmi_get_socket_handles(std::uint32_t* count, void** sockets) {
  const auto present = static_cast<std::uint32_t>((dies() + 1) / 2);
  if (sockets != nullptr)
    for (std::uint32_t i = 0; i < present && i < *count; ++i) sockets[i] = &g_dies[2 * i];
  *count = present;
  return 0;
}
int amdsmi_get_processor_handles(void* socket, std::uint32_t* count, void** processors) {
  const int first = *static_cast<int*>(socket);
  const auto present = static_cast<std::uint32_t>(dies() - first < 2 ? 1 : 2);
  if (processors != nullptr)
    for (std::uint32_t i = 0; i < present && i < *count; ++i)
      processors[i] = &g_dies[first + static_cast<int>(i)];
  *count = present;
  return 0;
}
int amdsmi_get_gpu_device_bdf(void* die, std::uint64_t* bits) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  std::sscanf(state_of(of("pci", die), "").c_str(), "%x:%x:%x.%x", &domain, &bus, &device,
              &function);
  *bits = std::uint64_t{domain} << 16 | bus << 8 | device << 3 | function;
  return 0;
}
int amdsmi_get_energy_count(void* die, std::uint64_t* count, float* unit, std::uint64_t* time) {
  if (const int error = static_cast<int>(number_of(of("energy_error", die), 0))) return error;
  *count = std::stoull(state_of(of("count", die), "0"));
  *unit = 15.3F;
  *time = std::stoull(state_of(of("time", die), "0"));
  return 0;
}
int amdsmi_get_power_info(void* die, void* info) {
  const auto watts = static_cast<std::uint32_t>(number_of(of("watts", die), 0));
  std::uint32_t words[8];
  std::memset(words, 0xff, sizeof words);
  const int first = number_of("version", 25) >= 25 ? 2 : 0;
  words[first + (state_of("average", "no") == "yes" ? 1 : 0)] = watts;
  std::memcpy(info, words, sizeof words);
  return 0;
}

}  // extern "C"
