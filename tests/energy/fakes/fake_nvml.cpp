// A library with the interface of NVML. Its GPUs are the PCI addresses pci0, pci1 … of the state;
// energy0 (mJ), power0 (mW), limit0 (mW), mig0 and error0 (an NVML code for every call) are theirs.
// With "simulate 1" a GPU draws exactly its limit.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

#include "state.h"

namespace {

int g_initialized = 0;
const auto g_loaded = std::chrono::steady_clock::now();

// A device handle is the address of its number.
int g_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
std::string key(const char* name, void* device) {
  return name + std::to_string(*static_cast<int*>(device));
}
int error_of(void* device) {
  if (g_initialized <= 0) return 1;
  return static_cast<int>(number_of(key("error", device), 0));
}
int count() {
  int n = 0;
  while (n < 16 && !state_of("pci" + std::to_string(n), "").empty()) ++n;
  return n;
}
struct Address {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  bool operator==(const Address&) const = default;
};
Address parse(const std::string& text) {
  Address a;
  std::sscanf(text.c_str(), "%x:%x:%x.%x", &a.domain, &a.bus, &a.device, &a.function);
  return a;
}
int refuse_to_set(void* device) {
  if (const int error = error_of(device)) return error;
  if (state_of(key("refuse", device), "no") == "yes") return 4;
  return state_of("permission", "yes") == "yes" ? 0 : 4;
}

}  // namespace

extern "C" {

struct nvmlPciInfo {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
};

int nvmlInit_v2() {
  while (state_of("hang", "no") == "yes") std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (const int error = static_cast<int>(number_of("init", 0))) return error;
  set_state("initialized", std::to_string(++g_initialized));
  return 0;
}
int nvmlShutdown() {
  set_state("initialized", std::to_string(--g_initialized));
  return 0;
}
const char* nvmlErrorString(int code) {
  switch (code) {
    case 3:
      return "Not Supported";
    case 4:
      return "Insufficient Permissions";
    case 6:
      return "Not Found";
    case 9:
      return "Driver Not Loaded";
    case 15:
      return "GPU is lost";
    default:
      return "Unknown Error";
  }
}
int nvmlDeviceGetCount_v2(unsigned* result) {
  *result = static_cast<unsigned>(count());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &g_numbers[index];
  return 0;
}
int nvmlDeviceGetIndex(void* device, unsigned* index) {
  *index = static_cast<unsigned>(*static_cast<int*>(device));
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  for (int i = 0; i < count(); ++i)
    if (parse(state_of("pci" + std::to_string(i), "")) == parse(address)) {
      *device = &g_numbers[i];
      return 0;
    }
  return 6;
}
int nvmlDeviceGetName(void*, char* name, unsigned size) {
  std::strncpy(name, "FAKE H200", size);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, nvmlPciInfo* info) {
  const Address a = parse(state_of(key("pci", device), ""));
  info->domain = a.domain;
  info->bus = a.bus;
  info->device = a.device;
  return 0;
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *current = *pending = static_cast<unsigned>(number_of(key("mig", device), 0));
  return 0;
}

#ifndef WITHOUT_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* mj) {
  if (const int error = error_of(device)) return error;
  if (number_of("simulate", 0) > 0) {
    // The integral of the limits since the library was loaded: each change adds what was drawn.
    const double now =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - g_loaded).count();
    const double drawn = number_of(key("drawn", device), 0), at = number_of(key("at", device), 0);
    *mj = static_cast<unsigned long long>(drawn +
                                          number_of(key("limit", device), 700000) * (now - at));
    return 0;
  }
  const double energy = number_of(key("energy", device), -1);
  if (energy < 0) return 3;
  *mj = static_cast<unsigned long long>(energy);
  return 0;
}
#endif
int nvmlDeviceGetPowerUsage(void* device, unsigned* mw) {
  if (const int error = error_of(device)) return error;
  const double power = number_of(key("power", device), -1);
  if (power < 0) return 3;
  *mw = static_cast<unsigned>(power);
  return 0;
}
int nvmlDeviceGetPowerManagementLimit(void* device, unsigned* mw) {
  *mw = static_cast<unsigned>(number_of(key("limit", device), 700000));
  return error_of(device);
}
int nvmlDeviceGetPowerManagementLimitConstraints(void* device, unsigned* low, unsigned* high) {
  *low = static_cast<unsigned>(number_of(key("lowest", device), 200000));
  *high = static_cast<unsigned>(number_of(key("highest", device), 700000));
  return error_of(device);
}
int nvmlDeviceSetPowerManagementLimit(void* device, unsigned mw) {
  if (const int error = refuse_to_set(device)) return error;
#ifndef WITHOUT_ENERGY
  if (number_of("simulate", 0) > 0) {
    unsigned long long mj = 0;
    nvmlDeviceGetTotalEnergyConsumption(device, &mj);
    set_state(key("drawn", device), std::to_string(mj));
    set_state(
        key("at", device),
        std::to_string(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - g_loaded).count()));
  }
#endif
  set_state(key("limit", device), std::to_string(mw));
  set_state("history", state_of("history", "") + "," + std::to_string(mw));
  return 0;
}
int nvmlDeviceGetSupportedMemoryClocks(void* device, unsigned* n, unsigned* clocks) {
  *n = 2;
  clocks[0] = 3201;
  clocks[1] = 2619;
  return error_of(device);
}
int nvmlDeviceGetSupportedGraphicsClocks(void* device, unsigned memory, unsigned* n,
                                         unsigned* clocks) {
  if (memory != 3201) return 2;
  *n = 4;
  const unsigned values[] = {1980, 1500, 1005, 345};
  std::memcpy(clocks, values, sizeof values);
  return error_of(device);
}
int nvmlDeviceSetGpuLockedClocks(void* device, unsigned low, unsigned high) {
  if (const int error = refuse_to_set(device)) return error;
  set_state(key("clock", device), std::to_string(low) + "-" + std::to_string(high));
  return 0;
}
int nvmlDeviceResetGpuLockedClocks(void* device) {
  if (const int error = refuse_to_set(device)) return error;
  set_state(key("clock", device), "unlocked");
  return 0;
}

}  // extern "C"
