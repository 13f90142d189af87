#include "cli/backends.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "backend/cpu/cpu_backend.h"
#include "backend/traced_backend.h"
#include "comm/communicator.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_world.h"
#include "core/error.h"

namespace kintsugi {
namespace {

// matmul.txt in $XDG_CACHE_HOME/kintsugi or ~/.cache/kintsugi. Empty (no cache file) if the
// directory cannot be created.
std::string default_matmul_cache() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::filesystem::path directory;
  if (cache != nullptr && *cache != '\0')
    directory = std::filesystem::path(cache) / "kintsugi";
  else if (home != nullptr && *home != '\0')
    directory = std::filesystem::path(home) / ".cache" / "kintsugi";
  std::error_code error;
  if (directory.empty() || (!std::filesystem::create_directories(directory, error) && error))
    return "";
  return (directory / "matmul.txt").string();
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

// A program drives the GPUs of one vendor.
void check_platform(DeviceChoice device) {
  const std::string_view asked = device == DeviceChoice::Hip ? "hip" : "cuda";
  const std::string built = gpu_platform();
  if (built.empty() || built == asked) return;  // make_gpu_backend says what is missing
  user_error(
      "device: {} needs a program that was built for it, but this one was built for {}: set "
      "device: {}, or cpu",
      asked, built, built);
}

}  // namespace

int choose_gpu(const std::string& choice, const std::vector<Device>& devices, int local_rank) {
  if (choice == "auto") return devices.empty() ? 0 : local_rank % static_cast<int>(devices.size());
  int number = 0;
  const auto parsed = std::from_chars(choice.data(), choice.data() + choice.size(), number);
  // A plain index is not checked here: the driver's own error says more.
  if (parsed.ec == std::errc() && parsed.ptr == choice.data() + choice.size()) return number;
  const std::string name = lower(choice);
  std::vector<int> found;
  std::string known;
  for (const Device& device : devices) {
    const bool uuid = name.size() > 4 && lower(device.uuid).starts_with(name);
    // With or without the domain: "1b:00.0" is "0000:1b:00.0".
    const bool pci = name.size() >= 7 && lower(device.pci).ends_with(name);
    if (uuid || pci) found.push_back(device.index);
    known += fmt::format("{}{}: {} {} {}", known.empty() ? "" : "; ", device.index, device.name,
                         device.uuid, device.pci);
  }
  if (found.size() == 1) return found.front();
  user_error("gpu.device '{}' matches {} of this machine's GPUs ({})", choice,
             found.empty() ? "none" : "more than one", known.empty() ? "it has none" : known);
}

DeviceChoice device_in_use(DeviceChoice device) {
  if (device != DeviceChoice::Auto) return device;
  if (gpu_device_count() == 0) return DeviceChoice::Cpu;
  return gpu_platform() == "hip" ? DeviceChoice::Hip : DeviceChoice::Cuda;
}

std::optional<bool> drives_gpus(GpuVendor vendor) {
  if (vendor == GpuVendor::Unknown) return std::nullopt;
  if (vendor == GpuVendor::None) return true;  // every build has the CPU backend
  return gpu_platform() == (vendor == GpuVendor::Amd ? "hip" : "cuda");
}

std::string why_undriven(GpuVendor vendor) {
  if (drives_gpus(vendor).value_or(true)) return "";
  return fmt::format("it was built without {} (docs/install.md)",
                     vendor == GpuVendor::Amd ? "HIP" : "CUDA");
}

std::string why_undriven(const Machine& machine) {
  const std::string why = why_undriven(machine.gpu.vendor);
  if (why.empty()) return "";
  return fmt::format("this program cannot use the GPUs of {} ({}, {}): {}", machine.name,
                     machine.gpu.name, name_of(machine.gpu.vendor), why);
}

std::string_view name_of(GpuVendor vendor) {
  constexpr std::array<std::string_view, 4> kNames = {"unknown", "none", "NVIDIA", "AMD"};
  return kNames.at(static_cast<std::size_t>(vendor));
}

std::unique_ptr<World> make_world(Trace* trace) {
  if (!started_by_mpi()) return std::make_unique<LocalWorld>();
  auto world = make_mpi_world(trace);
  // By default CUDA loads a kernel at its first launch. Loading may wait for running kernels, among
  // them a receive that depends on the new kernel: a deadlock.
  if (world->size() > 1) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return world;
}

DeviceWorld make_device_world(World& hosts, Backend& backend, const CommConfig& comm,
                              std::function<void(const RankFailure&)> on_failure, Trace* trace) {
  if (backend.device().stream == nullptr || hosts.size() == 1) return {};
  auto world = std::make_unique<NcclWorld>(hosts, backend,
                                           NcclOptions{.timeout_s = comm.timeout_s,
                                                       .allow_sockets = comm.allow_sockets,
                                                       .share_gpu = comm.share_gpu,
                                                       .register_buffers = comm.register_buffers,
                                                       .on_failure = std::move(on_failure),
                                                       .trace = trace});
  std::string description = world->description();
  std::optional<std::string> network;
  if (hosts.local_size() < hosts.size()) network = world->network();
  return {std::move(world), std::move(description), std::move(network)};
}

std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads,
                                      const GpuConfig& gpu, int local_rank, Trace* trace) {
  // Streams that share a hardware queue can block each other.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto on_host = [&] { return make_cpu_backend(static_cast<int>(threads)); };
  const DeviceChoice chosen = device_in_use(device);
  if (chosen != DeviceChoice::Cpu) {
    check_platform(chosen);
    return make_gpu_backend(
        {.device = choose_gpu(gpu.device, gpu_devices(), local_rank),
         .deterministic = gpu.deterministic,
         .tf32 = gpu.tf32,
         .graphs = gpu.graphs,
         .matmul_cache = gpu.matmul_cache == "auto" ? default_matmul_cache() : gpu.matmul_cache,
         .trace = trace,
         .host = on_host()});
  }
  auto backend = on_host();
  if (trace == nullptr) return backend;
  return make_traced_backend(std::move(backend), *trace);
}

}  // namespace kintsugi
