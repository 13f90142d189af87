#include "energy/meters/libraries.h"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <array>
#include <cstdlib>
#include <map>
#include <string>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/sysfs.h"

namespace kintsugi {
namespace {

// nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3.
struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
};

constexpr const char* kNvmlEnergy = "nvmlDeviceGetTotalEnergyConsumption";  // mJ
constexpr const char* kNvmlPower = "nvmlDeviceGetPowerUsage";               // mW

class NvmlMeter : public Meter {
 public:
  NvmlMeter(MeterIdentity identity, std::shared_ptr<const Nvml> nvml, Nvml::Device device)
      : Meter(std::move(identity)), nvml_(std::move(nvml)), device_(device) {}

  MeterReading read() override {
    MeterReading reading;
    std::string why;
    if (identity().kind == MeterKind::Counter) {
      const auto energy = nvml_->value<unsigned long long>(kNvmlEnergy, device_, &why);
      if (!energy) failure("{}: {}", identity().detail, why);
      reading.joules = static_cast<double>(*energy) * 1e-3;
    }
    if (const auto power = nvml_->value<unsigned>(kNvmlPower, device_, &why))
      reading.watts = *power * 1e-3;
    else if (identity().kind == MeterKind::Power)
      failure("{}: {}", identity().detail, why);
    return reading;
  }

 private:
  std::shared_ptr<const Nvml> nvml_;
  Nvml::Device device_;
};

// Why this GPU has no meter; empty: it was added.
std::string add_nvml_gpu(const std::shared_ptr<const Nvml>& nvml, const Nvml::Gpu& gpu,
                         const std::string& scope, FoundMeters& found) {
  if (!gpu.problem.empty()) return gpu.problem;
  if (nvml->has_mig(gpu.device))
    return "MIG is enabled, and an instance of a GPU has no energy counter";
  std::string no_energy, no_power;
  const bool counts =
      nvml->value<unsigned long long>(kNvmlEnergy, gpu.device, &no_energy).has_value();
  if (!counts && !nvml->value<unsigned>(kNvmlPower, gpu.device, &no_power))
    return fmt::format("no energy counter ({}) and no power ({})", no_energy, no_power);
  found.meters.push_back(std::make_unique<NvmlMeter>(
      MeterIdentity{.source = "nvml",
                    .scope = scope,
                    .level = EnergyLevel::Gpu,
                    .kind = counts ? MeterKind::Counter : MeterKind::Power,
                    .detail = fmt::format("{} {}", gpu.name, gpu.pci)},
      nvml, gpu.device));
  return "";
}

// EAR's functions write to a pipe: without this, the end of its daemon would end the process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now = {0, 0};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

LibraryNames ear_library() {
  LibraryNames names{.files = {"libear_api.so"}};
  const char* const installed = std::getenv("EAR_INSTALL_PATH");
  // Below the root: a path that begins with / would replace the root.
  if (installed != nullptr && *installed == '/')
    names.folders.push_back(std::string(installed + 1) + "/lib");
  return names;
}

class EarMeter : public Meter {
 public:
  explicit EarMeter(std::shared_ptr<const Ear> ear)
      : Meter({.source = "ear",
               .scope = "node",
               .level = EnergyLevel::Node,
               .detail = "EAR's daemon, whole node"}),
        ear_(std::move(ear)) {}
  MeterReading read() override {
    const Ear::Energy energy = ear_->energy();
    return {.joules = energy.joules, .time_s = energy.time_s};
  }

 private:
  std::shared_ptr<const Ear> ear_;
};

}  // namespace

Nvml::Nvml(const std::filesystem::path& root)
    : library_(root, {.files = {"libnvidia-ml.so.1", "libnvidia-ml.so"}}) {
  const std::optional<int> code = call("nvmlInit_v2");
  if (code != kSuccess) failure("nvmlInit: {}", error_text("nvmlInit_v2", code));
}

Nvml::~Nvml() { call("nvmlShutdown"); }

std::string Nvml::error_text(const char* function, std::optional<int> code) const {
  if (!code) return fmt::format("this driver's NVML has no {}", function);
  auto* const text = library_.find<const char*(int)>("nvmlErrorString");
  const char* const words = text != nullptr ? text(*code) : nullptr;
  return words != nullptr ? words : fmt::format("NVML error {}", *code);
}

Nvml::Gpu Nvml::describe(Device device) const {
  Gpu gpu{.device = device};
  std::array<char, 96> name{};
  if (call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size() - 1)) ==
      kSuccess)
    gpu.name = name.data();
  NvmlPci pci{};
  if (call("nvmlDeviceGetPciInfo_v3", device, &pci) == kSuccess)
    gpu.pci = pci_address(pci.domain, pci.bus, pci.device);
  return gpu;
}

std::vector<Nvml::Gpu> Nvml::gpus(const std::optional<std::vector<std::string>>& addresses) const {
  std::vector<Gpu> found;
  for (const std::string& address : addresses.value_or(std::vector<std::string>())) {
    const char* const function = "nvmlDeviceGetHandleByPciBusId_v2";
    Device device = nullptr;
    const std::optional<int> code = call(function, address.c_str(), &device);
    Gpu gpu = code == kSuccess ? describe(device) : Gpu{.problem = error_text(function, code)};
    gpu.pci = pci_address(address);
    found.push_back(std::move(gpu));
  }
  if (addresses) return found;
  unsigned count = 0;
  const std::optional<int> counted = call("nvmlDeviceGetCount_v2", &count);
  if (counted != kSuccess)
    failure("nvmlDeviceGetCount: {}", error_text("nvmlDeviceGetCount_v2", counted));
  for (unsigned index = 0; index < count; ++index) {
    const char* const function = "nvmlDeviceGetHandleByIndex_v2";
    Device device = nullptr;
    const std::optional<int> code = call(function, index, &device);
    found.push_back(code == kSuccess ? describe(device)
                                     : Gpu{.pci = fmt::format("number {}", index),
                                           .problem = error_text(function, code)});
  }
  return found;
}

bool Nvml::has_mig(Device device) const {
  unsigned current = 0, pending = 0;
  return call("nvmlDeviceGetMigMode", device, &current, &pending) == kSuccess && current == 1;
}

void add_nvml(const MeterSearch& search, FoundMeters& found) {
  try {
    const auto nvml = std::make_shared<const Nvml>(search.root);
    const std::vector<Nvml::Gpu> gpus = nvml->gpus(search.gpus);
    if (gpus.empty()) found.missing.push_back({"nvml", "NVML finds no GPU"});
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const std::string scope = fmt::format("gpu{}", i);
      const std::string why = add_nvml_gpu(nvml, gpus[i], scope, found);
      if (!why.empty())
        found.missing.push_back({"nvml", fmt::format("{}: {}", gpus[i].pci, why), scope});
    }
  } catch (const Failure& error) {
    found.missing.push_back({"nvml", error.what()});
  }
}

std::shared_ptr<Ear> Ear::connect(const std::filesystem::path& root) {
  static std::mutex mutex;
  static std::map<std::filesystem::path, std::weak_ptr<Ear>> connections;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Ear> ear = connections[root].lock();
  if (!ear) connections[root] = ear = std::make_shared<Ear>(root);
  return ear;
}

Ear::Ear(const std::filesystem::path& root) : library_(root, ear_library()) {
  const WithoutSigpipe guard;
  const std::optional<int> code = library_.call("ear_connect");
  if (!code || library_.find<int()>("ear_energy") == nullptr)
    failure("{} has no {}", library_.name(), code ? "ear_energy" : "ear_connect");
  if (*code != 0)
    failure("ear_connect: EAR's daemon does not answer (error {}); start the job with --ear=on",
            *code);
}

Ear::~Ear() {
  const WithoutSigpipe guard;
  if (auto* const disconnect = library_.find<void()>("ear_disconnect")) disconnect();
}

Ear::Energy Ear::energy() const {
  const std::lock_guard lock(mutex_);
  const WithoutSigpipe guard;
  unsigned long mj = 0, ms = 0;
  const std::optional<int> code = library_.call("ear_energy", &mj, &ms);
  if (code != 0) failure("ear_energy: error {} of EAR's daemon", code.value_or(-1));
  return {static_cast<double>(mj) * 1e-3, static_cast<double>(ms) * 1e-3};
}

bool Ear::set_gpu_clock(int gpu, double mhz) const {
  const std::lock_guard lock(mutex_);
  const WithoutSigpipe guard;
  return library_.call("ear_set_gpufreq", gpu, static_cast<unsigned long>(mhz * 1e3)) == 0;
}

void add_ear(const MeterSearch& search, FoundMeters& found) {
  try {
    auto ear = Ear::connect(search.root);
    ear->energy();
    found.meters.push_back(std::make_unique<EarMeter>(std::move(ear)));
  } catch (const Failure& error) {
    found.missing.push_back({"ear", error.what()});
  }
}

}  // namespace kintsugi
